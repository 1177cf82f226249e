//! Which build this is, by the mark the linker put into the program.

use std::fs::File;
use std::io::Read as _;

/// The file's beginning, in which the linker puts headers and notes.
const BEGINNING_BYTES: u64 = 64 * 1024;

/// The type of program header that leads to notes. Source: elf(5).
const PT_NOTE: u32 = 4;

/// The type of the note that is the build's mark. Source: elf(5), `NT_GNU_BUILD_ID`.
const BUILD_ID: u32 = 3;

/// How many bytes of the mark are shown: enough to tell builds apart.
const SHOWN_BYTES: usize = 4;

/// Gives the beginning of this program's build id; `None` where the linker made none.
pub fn build_id() -> Option<String> {
    let mut file = Vec::new();
    File::open("/proc/self/exe").ok()?.take(BEGINNING_BYTES).read_to_end(&mut file).ok()?;
    let id = id_of(&file)?;
    Some(id.iter().take(SHOWN_BYTES).map(|byte| format!("{byte:02x}")).collect())
}

/// Finds the build id in the beginning of a 64-bit ELF file of this machine's byte order.
fn id_of(file: &[u8]) -> Option<&[u8]> {
    if file.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let headers = usize::try_from(u64_at(file, 32)?).ok()?;
    let (size, count) = (usize::from(u16_at(file, 54)?), usize::from(u16_at(file, 56)?));
    (0..count).find_map(|number| {
        let header = file.get(headers.checked_add(number.checked_mul(size)?)?..)?;
        if u32_at(header, 0)? != PT_NOTE {
            return None;
        }
        let (start, length) = (usize::try_from(u64_at(header, 8)?).ok()?, usize::try_from(u64_at(header, 32)?).ok()?);
        note(file.get(start..start.checked_add(length)?)?)
    })
}

/// Finds the build id among notes: each has the length of its name, that of its content, its type, and both padded.
fn note(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let (name, content, kind) = (u32_at(notes, 0)?, u32_at(notes, 4)?, u32_at(notes, 8)?);
        let (name, content) = (usize::try_from(name).ok()?, usize::try_from(content).ok()?);
        let begin = 12_usize.checked_add(name.checked_next_multiple_of(4)?)?;
        if kind == BUILD_ID && notes.get(12..12 + name)? == b"GNU\0" {
            return notes.get(begin..begin.checked_add(content)?);
        }
        notes = notes.get(begin.checked_add(content.checked_next_multiple_of(4)?)?..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_found_behind_others_and_a_damaged_file_has_none() {
        let other = [&4_u32.to_ne_bytes()[..], &2_u32.to_ne_bytes(), &1_u32.to_ne_bytes(), b"GNU\0", b"ab\0\0"].concat();
        let ours = [&4_u32.to_ne_bytes()[..], &3_u32.to_ne_bytes(), &3_u32.to_ne_bytes(), b"GNU\0", b"\x01\x02\xff\0"].concat();
        assert_eq!(note(&[other.clone(), ours].concat()), Some(&b"\x01\x02\xff"[..]));
        assert_eq!(note(&other), None);
        assert_eq!(note(&[0xff; 64]), None);
        assert_eq!(id_of(b"#!/bin/sh\n"), None);
        assert_eq!(id_of(b"\x7fELF\x02"), None);
        let endless = [&b"\x7fELF\x02"[..], &[0xff; 200]].concat();
        assert_eq!(id_of(&endless), None);
    }
}
