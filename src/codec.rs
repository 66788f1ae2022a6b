//! Codecs: one rank's gradient into packets and back. The CPU function is the definition.
