//! The fields of one Example. `None` means that protobuf has to decide about the record.

use crate::varint::Cursor;

/// The first field of any message here that has a length: features, entries, names, values.
pub const FIRST: u8 = 0x0a;
pub const SECOND: u8 = 0x12;
/// Numbers that are not packed: a float has four bytes, an int64 is a varint.
const FLOAT: u8 = 0x0d;
const INT64: u8 = 0x08;
/// Protobuf reads lengths of no more bytes.
const MOST_LENGTH_BYTES: usize = 5;
const MOST_VARINT_BYTES: usize = 10;
/// A message cannot be longer.
const MOST_BYTES: usize = i32::MAX as usize;

/// What a feature's list holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bytes,
    Floats,
    Ints,
}

impl Kind {
    /// The kind whose lists have this tag.
    #[inline]
    pub fn of(tag: u8) -> Option<Kind> {
        [Kind::Bytes, Kind::Floats, Kind::Ints].into_iter().find(|kind| kind.tag() == tag)
    }

    /// The tag of the list in its feature.
    pub fn tag(self) -> u8 {
        match self {
            Kind::Bytes => 0x0a,
            Kind::Floats => 0x12,
            Kind::Ints => 0x1a,
        }
    }
}

/// The list of a feature, as it is stored.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    pub kind: Kind,
    bytes: &'a [u8],
}

/// Calls `visit` with the name and the list of each entry, in their order.
///
/// The name may not be UTF-8, and the list may be damaged. A name may come again: protobuf takes the
/// last entry.
pub fn entries<'a>(
    record: &'a [u8],
    mut visit: impl FnMut(&'a [u8], Option<List<'a>>) -> Option<()>,
) -> Option<()> {
    if record.len() > MOST_BYTES {
        return None;
    }
    let mut example = Cursor::new(record);
    while !example.is_empty() {
        let Some(features) = first(&mut example)? else { continue };
        let mut features = Cursor::new(features);
        while !features.is_empty() {
            let Some(entry) = first(&mut features)? else { continue };
            let (name, value) = pair(entry)?;
            visit(name, list(value)?)?;
        }
    }
    Some(())
}

impl<'a> List<'a> {
    /// Calls `visit` with each value of bytes, or with each run of stored numbers.
    ///
    /// Runs of floats are whole; those of varints may be damaged.
    pub fn parts(self, mut visit: impl FnMut(&'a [u8]) -> Option<()>) -> Option<()> {
        let mut rest = Cursor::new(self.bytes);
        while !rest.is_empty() {
            match (rest.byte()?, self.kind) {
                (FIRST, kind) => {
                    let part = sized(&mut rest)?;
                    if kind == Kind::Floats && part.len() % 4 != 0 {
                        return None;
                    }
                    visit(part)?;
                }
                (FLOAT, Kind::Floats) => visit(rest.take(4)?)?,
                (INT64, Kind::Ints) => {
                    let before = rest.rest();
                    varint(&mut rest)?;
                    visit(&before[..before.len() - rest.rest().len()])?;
                }
                (tag, _) => skip(tag, &mut rest)?,
            }
        }
        Some(())
    }
}

/// A number of up to 64 bits.
#[inline]
pub fn varint(cursor: &mut Cursor<'_>) -> Option<u64> {
    let first = cursor.byte()?;
    if first < 0x80 {
        return Some(u64::from(first));
    }
    let mut value = u64::from(first & 0x7f);
    for place in 1..MOST_VARINT_BYTES {
        let byte = cursor.byte()?;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            // The tenth byte has one bit left.
            return (place + 1 < MOST_VARINT_BYTES || byte <= 1).then_some(value);
        }
    }
    None
}

/// A length, and as many bytes.
#[inline]
fn sized<'a>(cursor: &mut Cursor<'a>) -> Option<&'a [u8]> {
    let before = cursor.rest().len();
    let length = varint(cursor)?;
    if before - cursor.rest().len() > MOST_LENGTH_BYTES {
        return None;
    }
    cursor.take(usize::try_from(length).ok()?)
}

/// The first field of a message, if it is the next one; another field is skipped.
#[inline]
fn first<'a>(cursor: &mut Cursor<'a>) -> Option<Option<&'a [u8]>> {
    match cursor.byte()? {
        FIRST => sized(cursor).map(Some),
        tag => skip(tag, cursor).map(|()| None),
    }
}

/// Skips the rest of a field that is unknown; groups and tags of several bytes are left to protobuf.
fn skip(tag: u8, cursor: &mut Cursor<'_>) -> Option<()> {
    let (number, wire_type) = (tag >> 3, tag & 7);
    if number == 0 || tag >= 0x80 {
        return None;
    }
    match wire_type {
        0 => varint(cursor).map(|_| ()),
        1 => cursor.take(8).map(|_| ()),
        2 => sized(cursor).map(|_| ()),
        5 => cursor.take(4).map(|_| ()),
        _ => None,
    }
}

/// The name and the value of an entry that has both, once, and nothing else.
#[inline]
fn pair(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut cursor = Cursor::new(entry);
    let tag = cursor.byte()?;
    let one = sized(&mut cursor)?;
    let other_tag = cursor.byte()?;
    let other = sized(&mut cursor)?;
    match (tag, other_tag, cursor.is_empty()) {
        (FIRST, SECOND, true) => Some((one, other)),
        (SECOND, FIRST, true) => Some((other, one)),
        _ => None,
    }
}

/// The list of a feature that has one and nothing else, or has nothing at all.
#[inline]
fn list(feature: &[u8]) -> Option<Option<List<'_>>> {
    let mut cursor = Cursor::new(feature);
    let Some(tag) = cursor.byte() else { return Some(None) };
    let kind = Kind::of(tag)?;
    let bytes = sized(&mut cursor)?;
    cursor.is_empty().then_some(Some(List { kind, bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(record: &[u8]) -> Option<Vec<(Vec<u8>, Option<Kind>)>> {
        let mut found = Vec::new();
        entries(record, |name, list| {
            found.push((name.to_vec(), list.map(|list| list.kind)));
            Some(())
        })?;
        Some(found)
    }

    #[test]
    fn entries_come_in_their_order() {
        let a = b"\x0a\x0a\x0a\x01a\x12\x05\x1a\x03\x0a\x01\x05";
        let record = [&b"\x0a\x0c"[..], a, b"\x78\x05", b"\x0a\x0c", a].concat();
        let entry = (b"a".to_vec(), Some(Kind::Ints));
        assert_eq!(names(&record), Some(vec![entry.clone(), entry]));
        for cut in [1, 5, 11, 13, 20, 27] {
            assert_eq!(names(&record[..cut]), None, "{cut}");
        }
        // Field 0, a group, an entry that says its name twice, a tag of two bytes.
        for odd in
            [&b"\x02\x00"[..], b"\x0b\x0c", b"\x0a\x06\x0a\x04\x0a\x00\x0a\x00", b"\x8a\x00\x00"]
        {
            assert_eq!(names(odd), None);
        }
    }

    #[test]
    fn varints_have_64_bits() {
        let read = |bytes: &[u8]| varint(&mut Cursor::new(bytes));
        assert_eq!(
            read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            Some(u64::MAX)
        );
        assert_eq!(read(&[0x85, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0]), Some(5));
        assert_eq!(read(&[0x85, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2]), None);
        assert_eq!(read(&[0x80; 11]), None);
        assert_eq!(read(&[0x80]), None);
    }

    #[test]
    fn lengths_have_five_bytes_at_most() {
        let read = |bytes| sized(&mut Cursor::new(bytes)).map(<[u8]>::to_vec);
        assert_eq!(read(&[0x81, 0x80, 0x80, 0x80, 0, 7]), Some(vec![7]));
        assert_eq!(read(&[0x81, 0x80, 0x80, 0x80, 0x80, 0, 7]), None);
        assert_eq!(read(&[2, 7]), None);
    }
}
