//! Gives the crate the hash of its own sources, so that a core older than them is noticed.
//!
//! `windrow.core.native.sources_hash` computes the same: FNV-1a with 64 bits over the name and the
//! bytes of each file, names in order.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut files = vec![root.join("Cargo.toml"), root.join("Cargo.lock"), root.join("build.rs")];
    collect(&root.join("src"), &mut files)?;
    let mut named = Vec::new();
    for file in files {
        let name = file.strip_prefix(&root).expect("it lies below the root");
        named.push((name.to_string_lossy().replace('\\', "/"), file));
    }
    named.sort();
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for (name, file) in named {
        for byte in name.bytes().chain(fs::read(&file)?) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        println!("cargo::rerun-if-changed={}", file.display());
    }
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rustc-env=WINDROW_SOURCES={hash:016x}");
    Ok(())
}
