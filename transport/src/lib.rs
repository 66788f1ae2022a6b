//! Frames, collectives and meshes.
