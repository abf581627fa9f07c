//! The parsers of TensorFlow's formats: frames of TFRecord files, and tf.train.Examples.

use super::Front;
use crate::tf_example::message::entries;
use crate::tf_example::rows::{Feature, Form, Rows};
use crate::tfrecord::{CHECKSUM_BYTES, HEADER_BYTES, LENGTH_BYTES, masked, records};

const NAMES: [&str; 3] = ["a", "b", "label"];
const FORMS: [&str; 12] = [
    "bytes",
    "bools in bytes",
    "float32",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
];

/// Makes the checksums of whole frames right.
fn seal_frames(mut rest: &mut [u8]) {
    while let Some((header, after)) = rest.split_at_mut_checked(HEADER_BYTES) {
        let (length, checksum) = header.split_at_mut(LENGTH_BYTES);
        checksum.copy_from_slice(&masked(length).to_le_bytes());
        let size = Front(length).size(LENGTH_BYTES);
        let Some((data, after)) = after.split_at_mut_checked(size) else { return };
        let Some((checksum, after)) = after.split_at_mut_checked(CHECKSUM_BYTES) else { return };
        checksum.copy_from_slice(&masked(data).to_le_bytes());
        rest = after;
    }
}

pub fn tfrecords(data: &[u8]) {
    let mut front = Front(data);
    let (is_sealed, cut) = (front.flag(), front.size(2));
    let mut block = front.0.to_vec();
    if is_sealed {
        seal_frames(&mut block);
    }
    let (checked, done) = records(&block, true);
    let framed: usize = checked.iter().map(|data| HEADER_BYTES + data.len() + CHECKSUM_BYTES).sum();
    assert!(done == framed && done <= block.len(), "the frames lie end to end");
    assert!(records(&block, false).0.starts_with(&checked), "checksums choose other records");
    assert_eq!(records(&block[..done], true), (checked.clone(), done));
    let (before, done) = records(&block[..cut.min(block.len())], true);
    assert!(checked.starts_with(&before), "a block that ends early has other records");
    let (after, _) = records(&block[done..], true);
    assert_eq!([before, after].concat(), checked, "the next block has other records");
}

/// A feature as one in Python's list: its form, the bytes of an item, ragged or not, optional or not.
fn feature(name: &str, front: &mut Front<'_>) -> Option<Feature> {
    let form = Form::named(FORMS[front.size(1) % FORMS.len()])?;
    let (item_bytes, ragged, optional) = (1 + front.size(1), front.flag(), front.flag());
    Some(Feature { name: name.to_owned(), form, item_bytes, ragged, optional })
}

pub fn examples(data: &[u8]) {
    let mut front = Front(data);
    let features: Option<Vec<Feature>> =
        NAMES.iter().map(|name| feature(name, &mut front)).collect();
    let Some(features) = features else { panic!("a form has no name") };
    let (first, rest) = front.0.split_at(front.size(2).min(front.0.len()));
    for exact in [false, true] {
        let both = Rows::of(&[first, rest], &features, exact);
        assert_eq!(both.taken.len(), 2);
        for (number, &record) in [first, rest].iter().enumerate() {
            check(&both, number, &features, record);
            let alone = Rows::of(&[record], &features, exact);
            assert_eq!(alone.taken, [both.taken[number]], "another record decides about this one");
            for k in 0..features.len() {
                assert_eq!(alone.row(0, k), both.row(number, k), "another record changes this one");
            }
        }
        if exact {
            let all = Rows::of(&[first, rest], &features, false);
            assert!(both.taken.iter().zip(&all.taken).all(|(exact, any)| exact <= any));
        }
    }
}

/// Checks the rows of a record against its features and its entries.
fn check(rows: &Rows<'_>, number: usize, features: &[Feature], record: &[u8]) {
    let mut names = Vec::new();
    let read = entries(record, |name, list| {
        names.push((name, list.is_some()));
        list.map_or(Some(()), |list| list.parts(|_| Some(())))
    });
    assert!(!rows.taken[number] || read.is_some(), "a damaged record is taken");
    for (k, feature) in features.iter().enumerate() {
        let row = rows.row(number, k);
        // A varint has a byte or more, and up to eight in memory.
        assert!(row.len() <= 8 * record.len(), "memory follows the stored bytes");
        let last = names.iter().rfind(|(name, _)| *name == feature.name.as_bytes());
        if !rows.taken[number] || !last.is_some_and(|&(_, has_list)| has_list) {
            assert!(row.is_empty(), "there is a row of nothing");
            assert!(!rows.taken[number] || feature.optional, "a feature is missing");
            continue;
        }
        let items = row.len() / feature.item_bytes;
        assert!(row.len() == items * feature.item_bytes && (feature.ragged || items == 1));
        let is_bool =
            matches!(feature.form, Form::Bytes { bools: true } | Form::Ints { bools: true, .. });
        assert!(!is_bool || row.iter().all(|&byte| byte <= 1), "a bool is neither 0 nor 1");
    }
}
