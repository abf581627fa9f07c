//! Numbers in groups of seven bits, the lowest first; and a cursor over bytes.

/// More bytes than any count or offset of these files has.
const MOST_BYTES: usize = 9;

/// Bytes that are read from the front. Each method gives `None` if they do not suffice.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    #[inline]
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }

    /// A number of at most nine bytes.
    #[inline]
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (at, &byte) in self.0.iter().take(MOST_BYTES).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                self.0 = &self.0[at + 1..];
                return Some(value);
            }
        }
        None
    }

    /// A number that fits 32 bits.
    #[inline]
    pub fn varint32(&mut self) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }

    /// A number of bytes, and these bytes.
    pub fn sized(&mut self) -> Option<&'a [u8]> {
        let count = self.varint()?;
        self.take(usize::try_from(count).ok()?)
    }
}

/// Appends a number.
pub fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_end_where_they_end() {
        let mut cursor = Cursor::new(&[0x96, 0x01, 0x00, 0x80]);
        assert_eq!((cursor.varint(), cursor.varint(), cursor.varint()), (Some(150), Some(0), None));
        assert_eq!(Cursor::new(&[0xff; 10]).varint(), None);
    }

    #[test]
    fn numbers_are_read_as_they_were_put() {
        for number in [0, 127, 128, 16_383, 16_384, 1 << 40, (1 << 63) - 1] {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, number);
            assert_eq!(Cursor::new(&bytes).varint(), Some(number));
        }
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(Cursor::new(&[2, 7, 8, 9]).sized(), Some(&[7_u8, 8][..]));
        assert_eq!(Cursor::new(&[4, 7, 8, 9]).sized(), None);
        assert_eq!(
            Cursor::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]).sized(),
            None
        );
    }
}
