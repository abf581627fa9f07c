//! Transposed chunks: protobuf messages that were taken apart, field by field.
//!
//! The data is a header, buckets of values, and transitions. The header describes a machine whose
//! states each write one thing: a tag with its value, the begin of a message, and so on. A transition
//! byte leads from state to state. The machine writes the records from their end to their begin.
//!
//! Invariant: only a bounded number of steps in a row writes nothing, so the work is bounded by the
//! bytes that are there and those that the header counts.

use super::codecs::{Codec, MOST_BYTES, Zstd, reserve};
use super::damage::{Damage, Found, commas, damaged};
use crate::varint::Cursor;

const NO_OP: u32 = 0;
const NON_PROTO: u32 = 1;
const START_OF_SUBMESSAGE: u32 = 2;
const START_OF_MESSAGE: u32 = 3;
/// The wire type that marks the end of a submessage, which has the tag of a string.
const END_OF_SUBMESSAGE: u32 = 6;
const STRING: u32 = 2;
/// Kinds of varints: those of 1 to 10 bytes, then those with the values 0 to 127.
const VARINT_LENGTHS: u8 = 10;
const VARINT_KINDS: u8 = VARINT_LENGTHS + 128;
/// More steps in a row than write nothing, and more open messages, than any written chunk has.
const MOST_IDLE: usize = 1 << 10;
const MOST_OPEN: usize = 1 << 10;

/// What a state writes.
#[derive(Clone, Copy, Debug)]
enum Action {
    Nothing,
    /// A record that is not a protobuf message, from a buffer.
    Opaque(usize),
    StartOfMessage,
    StartOfSubmessage,
    EndOfSubmessage,
    /// The tag, and the value in it if there is one.
    Tag,
    /// The tag and a varint of so many bytes from a buffer.
    Varint(usize, usize),
    /// The tag and so many bytes from a buffer.
    Fixed(usize, usize),
    /// The tag, and a length and as many bytes from a buffer.
    Text(usize),
}

#[derive(Clone, Copy, Debug)]
struct State {
    action: Action,
    tag: [u8; 6],
    tag_bytes: usize,
    next: usize,
    /// Whether the next state follows without a transition.
    is_implicit: bool,
}

/// The records of a chunk end to end, and where each ends.
pub fn decode(
    data: &[u8],
    records: u64,
    decoded_bytes: u64,
    zstd: &mut Zstd,
) -> Found<(Vec<u8>, Vec<usize>)> {
    let mut cursor = Cursor::new(data);
    let codec = Codec::of(or_cut_off(cursor.byte())?)?;
    let packed = or_cut_off(cursor.sized())?;
    let mut header = Vec::new();
    codec.stream(packed, MOST_BYTES, "header")?.unpack(zstd, &mut header)?;
    let mut header = Cursor::new(&header);
    let buckets = Buckets::read(codec, &mut header, &mut cursor, zstd)?;
    let states = states(&mut header, buckets.bounds.len())?;
    let first = or_cut_off(header.varint32())? as usize;
    if first >= states.len() || !header.is_empty() {
        return damaged("the header of its fields is damaged");
    }
    let mut transitions = Vec::new();
    codec.stream(cursor.rest(), MOST_BYTES, "transitions")?.unpack(zstd, &mut transitions)?;
    let machine = Machine {
        states: &states,
        values: &buckets.values,
        buffers: buckets.bounds,
        open: Vec::new(),
        written: Reversed { bytes: Vec::new(), most: decoded_bytes },
        starts: Vec::new(),
        records,
    };
    machine.run(first, &transitions)
}

fn or_cut_off<T>(found: Option<T>) -> Found<T> {
    found.ok_or_else(|| Damage("the parts of its fields are cut off".to_owned()))
}

/// The values of all fields.
struct Buckets {
    values: Vec<Vec<u8>>,
    /// The bucket of each buffer, and where it begins and ends there.
    bounds: Vec<Buffer>,
}

#[derive(Clone, Copy, Debug)]
struct Buffer {
    bucket: usize,
    at: usize,
    stop: usize,
}

impl Buckets {
    fn read(
        codec: Codec,
        header: &mut Cursor<'_>,
        data: &mut Cursor<'_>,
        zstd: &mut Zstd,
    ) -> Found<Self> {
        let count = or_cut_off(header.varint32())? as usize;
        let buffers = or_cut_off(header.varint32())? as usize;
        // Each length takes a byte of the header at least.
        if count.saturating_add(buffers) > header.rest().len() || (count == 0) != (buffers == 0) {
            return damaged("the number of its buffers is damaged");
        }
        let mut values = Vec::new();
        let mut total = 0;
        for _ in 0..count {
            let packed = or_cut_off(header.varint())?;
            let packed = or_cut_off(usize::try_from(packed).ok().and_then(|n| data.take(n)))?;
            let mut bucket = Vec::new();
            let stream = codec.stream(packed, MOST_BYTES, "fields")?;
            total += stream.size as u64;
            if total > MOST_BYTES {
                return damaged(format!("its fields take more than {} bytes", commas(MOST_BYTES)));
            }
            stream.unpack(zstd, &mut bucket)?;
            values.push(bucket);
        }
        let bounds = bounds(header, buffers, &values)?;
        Ok(Self { values, bounds })
    }
}

/// Cuts the buckets, one after the other, into buffers.
fn bounds(header: &mut Cursor<'_>, buffers: usize, values: &[Vec<u8>]) -> Found<Vec<Buffer>> {
    let mut bounds = Vec::new();
    reserve(&mut bounds, buffers)?;
    let (mut bucket, mut at) = (0, 0);
    for _ in 0..buffers {
        let size = or_cut_off(header.varint())?;
        let stop = usize::try_from(size).ok().and_then(|size| size.checked_add(at));
        let Some(stop) = stop.filter(|&stop| stop <= values[bucket].len()) else {
            return damaged("a buffer of its fields is longer than its bucket");
        };
        bounds.push(Buffer { bucket, at, stop });
        at = stop;
        while at == values[bucket].len() && bucket + 1 < values.len() {
            (bucket, at) = (bucket + 1, 0);
        }
    }
    if bucket + 1 < values.len() || values.last().is_some_and(|last| at < last.len()) {
        return damaged("its buckets hold more than its buffers");
    }
    Ok(bounds)
}

/// The states of the machine; `buffers` is the number of buffers.
fn states(header: &mut Cursor<'_>, buffers: usize) -> Found<Vec<State>> {
    let count = or_cut_off(header.varint32())? as usize;
    // A state takes two bytes of the header at least.
    if count > header.rest().len() / 2 {
        return damaged("the number of its fields is damaged");
    }
    let numbers = |header: &mut Cursor<'_>| -> Found<Vec<u32>> {
        (0..count).map(|_| or_cut_off(header.varint32())).collect()
    };
    let (tags, nexts) = (numbers(header)?, numbers(header)?);
    let varints = tags.iter().filter(|&&tag| tag >= 8 && tag & 7 == 0).count();
    let mut kinds = Cursor::new(or_cut_off(header.take(varints))?);
    let mut states = Vec::new();
    reserve(&mut states, count)?;
    for (&tag, &next) in tags.iter().zip(&nexts) {
        let is_implicit = next as usize >= count;
        let next = next as usize - if is_implicit { count } else { 0 };
        if next >= count {
            return damaged("a field follows that does not exist");
        }
        let mut state =
            State { action: Action::Nothing, tag: [0; 6], tag_bytes: 0, next, is_implicit };
        set_action(&mut state, tag, &mut kinds, header, buffers)?;
        states.push(state);
    }
    if silent_loop(&states) {
        return damaged("its fields follow one another for ever");
    }
    Ok(states)
}

fn set_action(
    state: &mut State,
    tag: u32,
    kinds: &mut Cursor<'_>,
    header: &mut Cursor<'_>,
    buffers: usize,
) -> Found<()> {
    let mut buffer = || match header.varint32() {
        Some(number) if (number as usize) < buffers => Ok(number as usize),
        _ => damaged("a field has a buffer that does not exist"),
    };
    state.action = match tag {
        NO_OP => Action::Nothing,
        NON_PROTO => Action::Opaque(buffer()?),
        START_OF_SUBMESSAGE => Action::StartOfSubmessage,
        START_OF_MESSAGE => Action::StartOfMessage,
        4..8 => return damaged("a field has no number"),
        _ if tag & 7 == END_OF_SUBMESSAGE => {
            state.set_tag(tag - END_OF_SUBMESSAGE + STRING);
            Action::EndOfSubmessage
        }
        _ => {
            state.set_tag(tag);
            match tag & 7 {
                0 => state.varint(or_cut_off(kinds.byte())?, buffer)?,
                1 => Action::Fixed(8, buffer()?),
                5 => Action::Fixed(4, buffer()?),
                STRING => Action::Text(buffer()?),
                3 | 4 => Action::Tag,
                _ => return damaged("a field has no type"),
            }
        }
    };
    Ok(())
}

impl State {
    fn set_tag(&mut self, mut tag: u32) {
        loop {
            self.tag[self.tag_bytes] = (tag & 0x7f) as u8 | if tag > 0x7f { 0x80 } else { 0 };
            self.tag_bytes += 1;
            tag >>= 7;
            if tag == 0 {
                return;
            }
        }
    }

    fn varint(&mut self, kind: u8, buffer: impl FnOnce() -> Found<usize>) -> Found<Action> {
        match kind {
            0..VARINT_LENGTHS => Ok(Action::Varint(usize::from(kind) + 1, buffer()?)),
            VARINT_LENGTHS..VARINT_KINDS => {
                self.tag[self.tag_bytes] = kind - VARINT_LENGTHS;
                self.tag_bytes += 1;
                Ok(Action::Tag)
            }
            _ => damaged("a field has a number of no kind"),
        }
    }
}

/// Whether states lead to one another for ever without a transition.
fn silent_loop(states: &[State]) -> bool {
    // The walk in which each state was first met.
    let mut met = vec![usize::MAX; states.len()];
    for start in 0..states.len() {
        let mut at = start;
        while met[at] == usize::MAX {
            met[at] = start;
            if !states[at].is_implicit {
                break;
            }
            at = states[at].next;
            if met[at] == start {
                return true;
            }
        }
    }
    false
}

/// Bytes that are written from the last to the first.
struct Reversed {
    bytes: Vec<u8>,
    most: u64,
}

impl Reversed {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn push(&mut self, piece: &[u8]) -> Found<()> {
        if (self.bytes.len() + piece.len()) as u64 > self.most {
            return damaged(format!("its records are longer than {} bytes", commas(self.most)));
        }
        if self.bytes.try_reserve(piece.len()).is_err() {
            return damaged("it asks for more memory than there is");
        }
        self.bytes.extend(piece.iter().rev());
        Ok(())
    }
}

struct Machine<'a> {
    states: &'a [State],
    values: &'a [Vec<u8>],
    buffers: Vec<Buffer>,
    /// The submessages that are open: their state, and the bytes written before.
    open: Vec<(usize, usize)>,
    written: Reversed,
    /// The bytes written when each record began, the last record first.
    starts: Vec<usize>,
    records: u64,
}

impl<'a> Machine<'a> {
    fn run(mut self, first: usize, transitions: &[u8]) -> Found<(Vec<u8>, Vec<usize>)> {
        let mut transitions = transitions.iter();
        let mut at = first;
        // Steps that follow without another transition.
        let mut steps = usize::from(self.states[at].is_implicit);
        let mut idle = 0;
        loop {
            self.act(at)?;
            let is_idle = matches!(self.states[at].action, Action::Nothing);
            idle = if is_idle { idle + 1 } else { 0 };
            if idle > MOST_IDLE || self.open.len() > MOST_OPEN {
                return damaged("its fields follow one another for too long");
            }
            let mut next = self.states[at].next;
            if steps == 0 {
                let Some(&byte) = transitions.next() else { break };
                next += usize::from(byte >> 2);
                steps = usize::from(byte & 3);
                let Some(state) = self.states.get(next) else {
                    return damaged("a field follows that does not exist");
                };
                steps += usize::from(state.is_implicit);
            } else {
                // An implicit step is none of those that the transition counted.
                steps -= usize::from(!self.states[next].is_implicit);
            }
            at = next;
        }
        self.finished()
    }

    fn act(&mut self, at: usize) -> Found<()> {
        let state = self.states[at];
        match state.action {
            Action::Nothing => {}
            Action::Opaque(buffer) => {
                // The lengths of such records are the last buffer.
                let size = self.length(self.buffers.len() - 1)?;
                let piece = self.take(buffer, size)?;
                self.written.push(piece)?;
                self.start_message()?;
            }
            Action::StartOfMessage => self.start_message()?,
            Action::EndOfSubmessage => self.open.push((at, self.written.len())),
            Action::StartOfSubmessage => self.start_submessage()?,
            Action::Tag => self.write_tag(&state)?,
            Action::Varint(size, buffer) => {
                let mut value = [0; VARINT_LENGTHS as usize];
                let value = &mut value[..size];
                value.copy_from_slice(self.take(buffer, size)?);
                let (_, more) = value.split_last_mut().unwrap_or((&mut 0, &mut []));
                more.iter_mut().for_each(|byte| *byte |= 0x80);
                self.written.push(value)?;
                self.write_tag(&state)?;
            }
            Action::Fixed(size, buffer) => {
                let piece = self.take(buffer, size)?;
                self.written.push(piece)?;
                self.write_tag(&state)?;
            }
            Action::Text(buffer) => {
                let before = self.buffers[buffer].at;
                let size = self.length(buffer)?;
                let lead = self.buffers[buffer].at - before;
                self.buffers[buffer].at = before;
                let piece = self.take(buffer, lead + size)?;
                self.written.push(piece)?;
                self.write_tag(&state)?;
            }
        }
        Ok(())
    }

    fn write_tag(&mut self, state: &State) -> Found<()> {
        self.written.push(&state.tag[..state.tag_bytes])
    }

    fn start_message(&mut self) -> Found<()> {
        if !self.open.is_empty() {
            return damaged("a record begins within a message");
        }
        if self.starts.len() as u64 == self.records {
            return damaged(format!("it has more than {} records", commas(self.records)));
        }
        self.starts.push(self.written.len());
        Ok(())
    }

    fn start_submessage(&mut self) -> Found<()> {
        let Some((state, before)) = self.open.pop() else {
            return damaged("a message begins that does not end");
        };
        let mut size = self.written.len() - before;
        let mut lead = Vec::new();
        while size > 0x7f {
            lead.push((size & 0x7f) as u8 | 0x80);
            size >>= 7;
        }
        lead.push(size as u8);
        self.written.push(&lead)?;
        let state = self.states[state];
        self.write_tag(&state)
    }

    /// A length that is read from a buffer.
    fn length(&mut self, buffer: usize) -> Found<usize> {
        let Buffer { bucket, at, stop } = self.buffers[buffer];
        let mut cursor = Cursor::new(&self.values[bucket][at..stop]);
        let size = or_cut_off(cursor.varint32())?;
        self.buffers[buffer].at = stop - cursor.rest().len();
        Ok(size as usize)
    }

    fn take(&mut self, buffer: usize, size: usize) -> Found<&'a [u8]> {
        let Buffer { bucket, at, stop } = self.buffers[buffer];
        if size > stop - at {
            return damaged("the values of a field are cut off");
        }
        self.buffers[buffer].at = at + size;
        let values: &'a [Vec<u8>] = self.values;
        Ok(&values[bucket][at..at + size])
    }

    fn finished(self) -> Found<(Vec<u8>, Vec<usize>)> {
        let (mut bytes, total) = (self.written.bytes, self.written.most);
        let is_whole = bytes.len() as u64 == total && self.starts.last() == Some(&bytes.len());
        if !self.open.is_empty() || self.starts.len() as u64 != self.records || !is_whole {
            return damaged(format!(
                "its fields make {} records of {} bytes together, and its header counts {} of {}",
                commas(self.starts.len() as u64),
                commas(bytes.len() as u64),
                commas(self.records),
                commas(total)
            ));
        }
        bytes.reverse();
        // The last record was written first, from the end; each begins where the one before ends.
        let mut ends: Vec<usize> = self.starts.iter().map(|start| bytes.len() - start).collect();
        ends.reverse();
        ends.remove(0);
        ends.push(bytes.len());
        Ok((bytes, ends))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(next: usize, is_implicit: bool) -> State {
        State { action: Action::Nothing, tag: [0; 6], tag_bytes: 0, next, is_implicit }
    }

    #[test]
    fn silent_loops_are_found() {
        assert!(silent_loop(&[state(0, true)]));
        assert!(silent_loop(&[state(1, true), state(2, true), state(1, true)]));
        assert!(!silent_loop(&[state(1, true), state(2, true), state(1, false)]));
        assert!(!silent_loop(&[state(2, true), state(2, true), state(1, false)]));
    }

    #[test]
    fn tags_are_varints() {
        let mut one = state(0, false);
        one.set_tag(u32::MAX);
        assert_eq!(&one.tag[..one.tag_bytes], [0xff, 0xff, 0xff, 0xff, 0x0f]);
        let mut one = state(0, false);
        one.set_tag(8);
        assert_eq!(&one.tag[..one.tag_bytes], [8]);
    }

    #[test]
    fn whatever_the_bytes_are_it_ends() {
        let mut seed = 1_u64;
        for length in 0..2000 {
            let mut data = vec![0];
            for _ in 0..length % 60 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                data.push((seed >> 33) as u8 % if seed & 64 == 0 { 8 } else { 255 });
            }
            let _ = decode(&data, 3, 100, &mut Zstd::new());
        }
    }
}
