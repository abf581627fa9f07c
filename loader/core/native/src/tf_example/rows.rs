//! The values of the wanted features of some records.

use std::collections::HashMap;
use std::ops::Range;

use super::message::{Kind, List, entries, varint};
use crate::varint::Cursor;

/// What the items of a feature are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One value of bytes; with `bools` each of them is 0 or 1.
    Bytes {
        bools: bool,
    },
    Floats,
    /// Whole numbers that fit so many bytes; bools are 0 or 1.
    Ints {
        width: usize,
        signed: bool,
        bools: bool,
    },
}

impl Form {
    /// The form by its name: "bytes", "bools in bytes", "float32", or NumPy's name of an integer.
    pub fn named(name: &str) -> Option<Form> {
        let ints = |width, signed| Form::Ints { width, signed, bools: false };
        Some(match name {
            "bytes" => Form::Bytes { bools: false },
            "bools in bytes" => Form::Bytes { bools: true },
            "float32" => Form::Floats,
            "bool" => Form::Ints { width: 1, signed: false, bools: true },
            "int8" => ints(1, true),
            "int16" => ints(2, true),
            "int32" => ints(4, true),
            "int64" => ints(8, true),
            "uint8" => ints(1, false),
            "uint16" => ints(2, false),
            "uint32" => ints(4, false),
            "uint64" => ints(8, false),
            _ => return None,
        })
    }

    fn kind(self) -> Kind {
        match self {
            Form::Bytes { .. } => Kind::Bytes,
            Form::Floats => Kind::Floats,
            Form::Ints { .. } => Kind::Ints,
        }
    }
}

/// A feature that is wanted of each record.
#[derive(Debug)]
pub struct Feature {
    pub name: String,
    pub form: Form,
    /// Bytes of a row in memory, or of one item of a ragged one.
    pub item_bytes: usize,
    pub ragged: bool,
    /// A record without it has a row of no items.
    pub optional: bool,
}

impl Feature {
    fn takes(&self, bytes: usize) -> bool {
        if self.ragged { bytes.is_multiple_of(self.item_bytes) } else { bytes == self.item_bytes }
    }
}

/// The bytes of a row: as stored in its record, or decoded.
#[derive(Clone, Debug)]
enum Row<'a> {
    Stored(&'a [u8]),
    Decoded(Range<usize>),
}

/// The rows of consecutive records.
pub struct Rows<'a> {
    features: usize,
    /// Whether each record was taken.
    pub taken: Vec<bool>,
    /// The rows of all features of a record, then those of the next one.
    rows: Vec<Row<'a>>,
    decoded: Vec<u8>,
}

impl<'a> Rows<'a> {
    /// Decodes `records`. With `exact` those with other features are not taken.
    pub fn of(records: &[&'a [u8]], features: &[Feature], exact: bool) -> Rows<'a> {
        let mut reader = Reader {
            features,
            exact,
            numbers: features.iter().enumerate().map(|(k, f)| (f.name.as_bytes(), k)).collect(),
            after: vec![0; features.len()],
            found: vec![None; features.len()],
            decoded: Vec::new(),
        };
        let mut taken = Vec::with_capacity(records.len());
        let mut rows = Vec::with_capacity(records.len() * features.len());
        for record in records {
            let before = reader.decoded.len();
            let is_taken = reader.read(record).is_some();
            if !is_taken {
                reader.decoded.truncate(before);
                reader.found.fill(None);
            }
            taken.push(is_taken);
            rows.extend(reader.found.iter_mut().map(|row| row.take().unwrap_or(Row::Stored(&[]))));
        }
        Rows { features: features.len(), taken, rows, decoded: reader.decoded }
    }

    /// The bytes of a feature in a record, which was taken.
    pub fn row(&self, record: usize, feature: usize) -> &[u8] {
        match &self.rows[record * self.features + feature] {
            Row::Stored(bytes) => bytes,
            Row::Decoded(range) => &self.decoded[range.clone()],
        }
    }
}

/// Reads one record after another.
struct Reader<'a, 'f> {
    features: &'f [Feature],
    exact: bool,
    numbers: HashMap<&'f [u8], usize>,
    /// The feature that came after each one in the records before: most programs keep an order.
    after: Vec<usize>,
    found: Vec<Option<Row<'a>>>,
    decoded: Vec<u8>,
}

impl<'a> Reader<'a, '_> {
    /// Fills `found` from a record.
    fn read(&mut self, record: &'a [u8]) -> Option<()> {
        let mut last = self.features.len() - 1;
        entries(record, |name, list| {
            let guess = self.after[last];
            let number = if self.features[guess].name.as_bytes() == name {
                guess
            } else if let Some(&number) = self.numbers.get(name) {
                self.after[last] = number;
                number
            } else {
                std::str::from_utf8(name).ok()?;
                return list.map_or(Some(()), |list| self.pass_over(list));
            };
            last = number;
            self.found[number] = match list {
                Some(list) => Some(self.row(number, list)?),
                None => None,
            };
            Some(())
        })?;
        let is_whole =
            |(row, feature): (&Option<Row<'_>>, &Feature)| row.is_some() || feature.optional;
        self.found.iter().zip(self.features).all(is_whole).then_some(())
    }

    /// Checks the list of a feature that is not wanted.
    fn pass_over(&self, list: List<'a>) -> Option<()> {
        if self.exact {
            return None;
        }
        list.parts(|part| {
            let mut numbers = Cursor::new(if list.kind == Kind::Ints { part } else { &[] });
            while !numbers.is_empty() {
                varint(&mut numbers)?;
            }
            Some(())
        })
    }

    /// The row of a feature, which its list has to suit.
    fn row(&mut self, number: usize, list: List<'a>) -> Option<Row<'a>> {
        let feature = &self.features[number];
        if feature.form.kind() != list.kind {
            return None;
        }
        let (row, size) = match feature.form {
            Form::Bytes { bools } => {
                let bytes = one(list)?;
                if bools && bytes.iter().any(|&byte| byte > 1) {
                    return None;
                }
                (Row::Stored(bytes), bytes.len())
            }
            Form::Floats => self.floats(list)?,
            Form::Ints { width, signed, bools } => {
                let begin = self.decoded.len();
                list.parts(|part| {
                    self.ints(part, |value| fits(value, width, signed, bools), width)
                })?;
                (Row::Decoded(begin..self.decoded.len()), self.decoded.len() - begin)
            }
        };
        feature.takes(size).then_some(row)
    }

    /// Floats are as stored where they lie together, as they mostly do.
    fn floats(&mut self, list: List<'a>) -> Option<(Row<'a>, usize)> {
        let begin = self.decoded.len();
        let (mut parts, mut first): (usize, &[u8]) = (0, &[]);
        list.parts(|part| {
            parts += 1;
            match parts {
                1 => first = part,
                2 => self.decoded.extend_from_slice(&[first, part].concat()),
                _ => self.decoded.extend_from_slice(part),
            }
            Some(())
        })?;
        let end = self.decoded.len();
        Some(if parts > 1 {
            (Row::Decoded(begin..end), end - begin)
        } else {
            (Row::Stored(first), first.len())
        })
    }

    /// Decodes varints, each of which has to fit.
    #[inline]
    fn ints(&mut self, part: &[u8], fits: impl Fn(i64) -> bool, width: usize) -> Option<()> {
        let mut rest = Cursor::new(part);
        while !rest.is_empty() {
            let value = varint(&mut rest)?;
            if !fits(value.cast_signed()) {
                return None;
            }
            self.decoded.extend_from_slice(&value.to_le_bytes());
            self.decoded.truncate(self.decoded.len() - 8 + width);
        }
        Some(())
    }
}

/// The value of a list that has exactly one.
fn one<'a>(list: List<'a>) -> Option<&'a [u8]> {
    let mut only = None;
    list.parts(|part| only.replace(part).is_none().then_some(()))?;
    only
}

#[inline]
fn fits(value: i64, width: usize, signed: bool, bools: bool) -> bool {
    let spare = 64 - 8 * width as u32;
    if bools {
        (0..=1).contains(&value)
    } else if signed {
        value << spare >> spare == value
    } else {
        value >= 0 && value.cast_unsigned() << spare >> spare == value.cast_unsigned()
    }
}
