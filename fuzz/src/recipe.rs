//! Reading an input as instructions.

/// An input, read from its front. Where it has ended, everything is 0.
pub struct Recipe<'a> {
    rest: &'a [u8],
}

impl<'a> Recipe<'a> {
    #[must_use]
    pub fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let taken = self.bytes(N);
        out[..taken.len()].copy_from_slice(taken);
        out
    }

    pub fn u8(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Below `count`, which is at least 1; two bytes of the input.
    pub fn below(&mut self, count: usize) -> usize {
        usize::from(self.u16()) % count
    }

    /// One of `all`.
    pub fn pick<'b, T>(&mut self, all: &'b [T]) -> &'b T {
        let index = self.below(all.len());
        &all[index]
    }

    /// Up to `most` bytes, fewer at the end.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(most.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// What is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }

    /// What is left, as text.
    pub fn text(&mut self) -> String {
        String::from_utf8_lossy(self.rest()).into_owned()
    }

    /// Changes `message` in up to three places, or its length; not at all where the input says so or has ended.
    pub fn spoil(&mut self, message: &mut Vec<u8>) {
        for _ in 0..self.u8() % 4 {
            let kind = self.u8();
            if message.is_empty() {
                message.extend_from_slice(self.bytes(usize::from(kind % 9)));
                continue;
            }
            let at = self.below(message.len());
            match kind % 8 {
                0 => message[at] ^= 1 << (self.u8() % 8),
                1 => message[at] = self.u8(),
                2 => message.truncate(at),
                3 => message.insert(at, self.u8()),
                // A whole number of four or eight bytes, where numbers stand.
                kind => {
                    let width = if kind < 6 { 4 } else { 8 };
                    let at = at / width * width;
                    for (byte, new) in message[at..].iter_mut().zip(self.bytes(width)) {
                        *byte = *new;
                    }
                }
            }
        }
    }
}
