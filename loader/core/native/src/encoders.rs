//! From the bytes of chunks to the bytes that are stored.
//!
//! Invariant: equal bytes are encoded to equal bytes, whatever the threads.

use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use libdeflate_sys as deflate;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zstd_safe::{CCtx, CParameter, compress_bound};

use crate::codecs::{Damage, fit};
use crate::guard::guarded;
use crate::memory::Memory;

/// What blosc adds to bytes that it cannot compress.
const BLOSC_OVERHEAD: usize = 16;
/// Memory that is kept from call to call.
const KEPT_BYTES: usize = 16 << 20;

/// The settings of one codec.
#[derive(Clone, Debug)]
enum Setting {
    Zstd { level: i32, checksum: bool },
    Gzip { level: i32 },
    Blosc { name: CString, level: i32, shuffle: i32, typesize: usize, blocksize: usize },
    Crc32c,
}

impl Setting {
    fn of(name: &str, numbers: &[i64]) -> Option<Setting> {
        let small = |number: i64| i32::try_from(number).ok();
        let size = |number: i64| usize::try_from(number).ok();
        Some(match (name.split_once(':').unwrap_or((name, "")), numbers) {
            (("zstd", ""), &[level, checksum]) => {
                Setting::Zstd { level: small(level)?, checksum: checksum != 0 }
            }
            (("gzip", ""), &[level @ 0..=9]) => Setting::Gzip { level: small(level)? },
            (("blosc", name), &[level @ 0..=9, shuffle @ 0..=2, typesize @ 1..=255, blocksize]) => {
                Setting::Blosc {
                    name: CString::new(name).ok()?,
                    level: small(level)?,
                    shuffle: small(shuffle)?,
                    typesize: size(typesize)?,
                    blocksize: size(blocksize)?,
                }
            }
            (("crc32c", ""), []) => Setting::Crc32c,
            _ => return None,
        })
    }
}

/// A codec, ready to encode one chunk after the other.
enum Encoder {
    Zstd(CCtx<'static>),
    Gzip(Deflater),
    Other(Setting),
}

struct Deflater(*mut deflate::libdeflate_compressor);

// SAFETY: the library keeps no state of threads, and one thread at a time has it.
unsafe impl Send for Deflater {}

impl Drop for Deflater {
    fn drop(&mut self) {
        // SAFETY: `Encoder::new` allocated it, and nothing else frees it.
        unsafe { deflate::libdeflate_free_compressor(self.0) }
    }
}

impl Encoder {
    fn new(setting: &Setting) -> Result<Encoder, Damage> {
        Ok(match *setting {
            Setting::Zstd { level, checksum } => {
                let mut context = CCtx::try_create().ok_or("zstd: no memory")?;
                for one in [CParameter::CompressionLevel(level), CParameter::ChecksumFlag(checksum)]
                {
                    context.set_parameter(one).map_err(zstd_error)?;
                }
                Encoder::Zstd(context)
            }
            Setting::Gzip { level } => {
                // SAFETY: any level is allowed; what it returns may be null, and `drop` frees it.
                let deflater = unsafe { deflate::libdeflate_alloc_compressor(level) };
                if deflater.is_null() {
                    return Err("gzip: no memory".to_owned());
                }
                Encoder::Gzip(Deflater(deflater))
            }
            _ => Encoder::Other(setting.clone()),
        })
    }

    /// Encodes `data` to the front of `out`, which may grow; the bytes it takes there.
    fn encode(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<usize, Damage> {
        match self {
            Encoder::Zstd(context) => {
                fit(out, compress_bound(data.len()))?;
                context.compress2(&mut out[..], data).map_err(zstd_error)
            }
            Encoder::Gzip(deflater) => gzip(deflater, data, out),
            Encoder::Other(Setting::Blosc { name, level, shuffle, typesize, blocksize }) => {
                fit(out, data.len() + BLOSC_OVERHEAD)?;
                // Blosc shuffles no part of a value.
                let typesize = if data.len().is_multiple_of(*typesize) { *typesize } else { 1 };
                // SAFETY: both memories are given with their sizes, and `name` ends with a null.
                let size = unsafe {
                    blosc_src::blosc_compress_ctx(
                        *level,
                        *shuffle,
                        typesize,
                        data.len(),
                        data.as_ptr().cast(),
                        out.as_mut_ptr().cast(),
                        out.len(),
                        name.as_ptr(),
                        *blocksize,
                        1,
                    )
                };
                let size = usize::try_from(size).ok().filter(|&size| size > 0);
                size.ok_or_else(|| "blosc cannot encode it".to_owned())
            }
            Encoder::Other(_) => {
                fit(out, data.len() + 4)?;
                out[..data.len()].copy_from_slice(data);
                out[data.len()..data.len() + 4]
                    .copy_from_slice(&crc32c::crc32c(data).to_le_bytes());
                Ok(data.len() + 4)
            }
        }
    }
}

fn gzip(deflater: &mut Deflater, data: &[u8], out: &mut Vec<u8>) -> Result<usize, Damage> {
    // SAFETY: the compressor is not null, and this thread's alone.
    let most = unsafe { deflate::libdeflate_gzip_compress_bound(deflater.0, data.len()) };
    fit(out, most)?;
    // SAFETY: as above; both memories are given with their sizes.
    let size = unsafe {
        deflate::libdeflate_gzip_compress(
            deflater.0,
            data.as_ptr().cast(),
            data.len(),
            out.as_mut_ptr().cast(),
            out.len(),
        )
    };
    if size == 0 { Err("gzip cannot encode it".to_owned()) } else { Ok(size) }
}

fn zstd_error(code: usize) -> Damage {
    format!("zstd: {}", zstd_safe::get_error_name(code))
}

/// The codecs of an array, in the order in which they encode, and memory between them.
struct Line {
    encoders: Vec<Encoder>,
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Line {
    fn new(settings: &[Setting]) -> Result<Line, Damage> {
        let encoders = settings.iter().map(Encoder::new).collect::<Result<_, _>>()?;
        Ok(Line { encoders, from: Vec::new(), to: Vec::new() })
    }

    /// Appends the stored bytes of a chunk.
    fn encode(&mut self, chunk: &[u8], stored: &mut Vec<u8>) -> Result<(), Damage> {
        let mut size = None;
        for encoder in &mut self.encoders {
            let data = size.map_or(chunk, |size| &self.from[..size]);
            size = Some(encoder.encode(data, &mut self.to)?);
            std::mem::swap(&mut self.from, &mut self.to);
        }
        let data = size.map_or(chunk, |size| &self.from[..size]);
        stored.try_reserve(data.len()).map_err(|_| "no memory to encode".to_owned())?;
        stored.extend_from_slice(data);
        Ok(())
    }
}

/// Encodes chunks by some codecs; many threads may call it at a time.
#[pyclass(frozen, module = "windrow.core._native")]
struct ChunkEncoder {
    settings: Vec<Setting>,
    lines: Mutex<Vec<Line>>,
}

#[pymethods]
impl ChunkEncoder {
    /// Each codec is its name, with that of its compressor for blosc ("blosc:lz4"), and numbers.
    #[new]
    fn new(codecs: Vec<(String, Vec<i64>)>) -> PyResult<Self> {
        let settings: Option<Vec<Setting>> =
            codecs.iter().map(|(name, numbers)| Setting::of(name, numbers)).collect();
        let settings = settings.ok_or_else(|| {
            PyValueError::new_err(format!("the core does not encode by {codecs:?}"))
        })?;
        let line = Line::new(&settings).map_err(PyValueError::new_err)?;
        Ok(Self { settings, lines: Mutex::new(vec![line]) })
    }

    /// The stored bytes of each chunk; nobody changes the chunks meanwhile.
    fn encode<'py>(
        &self,
        py: Python<'py>,
        chunks: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        guarded(|| {
            let chunks: Vec<Memory> =
                chunks.iter().map(Memory::readable).collect::<PyResult<_>>()?;
            let (stored, ends) =
                py.detach(|| self.encoded(&chunks)).map_err(PyRuntimeError::new_err)?;
            let begins = std::iter::once(&0).chain(&ends);
            let cut = begins.zip(&ends).map(|(&begin, &end)| &stored[begin..end]);
            Ok(cut.map(|bytes| PyBytes::new(py, bytes)).collect())
        })
    }
}

impl ChunkEncoder {
    fn encoded(&self, chunks: &[Memory]) -> Result<(Vec<u8>, Vec<usize>), Damage> {
        let lines = || self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = lines().pop();
        let mut line = kept.map_or_else(|| Line::new(&self.settings), Ok)?;
        let (mut stored, mut ends) = (Vec::new(), Vec::with_capacity(chunks.len()));
        for chunk in chunks {
            line.encode(chunk.content(), &mut stored)?;
            ends.push(stored.len());
        }
        if line.from.len().max(line.to.len()) <= KEPT_BYTES {
            lines().push(line);
        }
        Ok((stored, ends))
    }
}

/// Registers the class of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ChunkEncoder>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codecs::{Chain, Codec, Tools};

    #[test]
    fn chunks_decode_to_what_they_were() {
        let data: Vec<u8> = (0..30_000_u32).map(|k| (k / 7 % 251) as u8).collect();
        for (codecs, decoders) in [
            (vec![("zstd", vec![3, 1])], vec![Codec::Zstd]),
            (vec![("gzip", vec![6])], vec![Codec::Gzip]),
            (vec![("blosc:lz4", vec![5, 1, 4, 0])], vec![Codec::Blosc]),
            (
                vec![("crc32c", vec![]), ("zstd", vec![1, 0]), ("crc32c", vec![])],
                vec![Codec::Crc32c, Codec::Zstd, Codec::Crc32c],
            ),
        ] {
            let settings: Vec<Setting> =
                codecs.iter().map(|(name, numbers)| Setting::of(name, numbers).unwrap()).collect();
            let mut line = Line::new(&settings).unwrap();
            for size in [0, 1, 29_999, 4] {
                let mut stored = Vec::new();
                line.encode(&data[..size], &mut stored).unwrap();
                let mut out = vec![0; size];
                let chain = Chain::new(&decoders, size).unwrap();
                chain.decode(&stored, &mut out, size, &mut Vec::new(), &mut Tools::new()).unwrap();
                assert_eq!(out, data[..size], "{codecs:?} {size}");
            }
        }
        assert!(Setting::of("gzip", &[10]).is_none() && Setting::of("lz4", &[1]).is_none());
    }
}
