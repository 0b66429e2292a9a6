//! A shared library without code that needs two others.
//!
//! A look-up by the handle of a library goes through the libraries that it needs, in their order.
//! So a program that opens this one finds the functions of the first, and those of the second that
//! the first does not have.

use super::processor::PROCESSOR;
use object::elf::{
    DT_NEEDED, DT_NULL, DT_RUNPATH, DT_SONAME, DT_STRSZ, DT_STRTAB, DT_SYMENT, DT_SYMTAB, Dyn64, DynamicTag,
    ELFCLASS64, ELFDATA2LSB, ELFMAG, ELFOSABI_NONE, ET_DYN, EV_CURRENT, FileFlags, FileHeader64, Ident, PF_R, PF_W,
    PT_DYNAMIC, PT_GNU_STACK, PT_LOAD, ProgramHeader64, ProgramType, SymbolSection,
};
use object::pod::{bytes_of, bytes_of_slice};
use object::{I64, LittleEndian as Little, U16, U32, U64};
use std::mem::size_of;

/// The parts of the file, one after the other: the header, the program headers, the dynamic
/// section, the symbol table with the one symbol that every table has, and the texts.
const HEADER: usize = size_of::<FileHeader64<Little>>();
const DYNAMIC: usize = HEADER + 3 * size_of::<ProgramHeader64<Little>>();
const ENTRIES: usize = 9;
const SYMBOLS: usize = DYNAMIC + ENTRIES * size_of::<Dyn64<Little>>();
const SYMBOL: usize = 24;
const TEXTS: usize = SYMBOLS + SYMBOL;

/// The largest page of the processors that the command is built for.
const PAGE: u64 = 64 << 10;

/// Returns the file of a library with a name for the loader, which needs two others. One that is
/// not loaded yet is found beside the file.
pub(super) fn image(name: &str, needed: [&str; 2]) -> Vec<u8> {
    let mut texts = vec![0];
    let mut text = |text: &str| {
        let at = texts.len() as u64;
        texts.extend(text.bytes().chain([0]));
        at
    };
    let [name, first, second, folder] = [name, needed[0], needed[1], "$ORIGIN"].map(&mut text);
    let entry = |tag: DynamicTag, value: u64| Dyn64 { d_tag: I64::new(Little, tag), d_val: U64::new(Little, value) };
    let dynamic: [_; ENTRIES] = [
        entry(DT_NEEDED, first),
        entry(DT_NEEDED, second),
        entry(DT_SONAME, name),
        entry(DT_RUNPATH, folder),
        entry(DT_STRTAB, TEXTS as u64),
        entry(DT_STRSZ, texts.len() as u64),
        entry(DT_SYMTAB, SYMBOLS as u64),
        entry(DT_SYMENT, SYMBOL as u64),
        entry(DT_NULL, 0),
    ];
    let segment = |kind: ProgramType, from: usize, to: usize, align: u64| ProgramHeader64 {
        p_type: U32::new(Little, kind),
        // Older loaders write the addresses of the tables into the dynamic section.
        p_flags: U32::new(Little, PF_R | PF_W),
        p_offset: U64::new(Little, from as u64),
        p_vaddr: U64::new(Little, from as u64),
        p_paddr: U64::new(Little, from as u64),
        p_filesz: U64::new(Little, (to - from) as u64),
        p_memsz: U64::new(Little, (to - from) as u64),
        p_align: U64::new(Little, align),
    };
    let segments = [
        segment(PT_LOAD, 0, TEXTS + texts.len(), PAGE),
        segment(PT_DYNAMIC, DYNAMIC, SYMBOLS, 8),
        // Without this entry the loader would make every stack of the program executable.
        segment(PT_GNU_STACK, 0, 0, 16),
    ];
    let header = header();
    let parts = [bytes_of(&header), bytes_of_slice(&segments), bytes_of_slice(&dynamic), &[0; SYMBOL], &texts];
    parts.concat()
}

/// Returns the header of the file.
fn header() -> FileHeader64<Little> {
    FileHeader64 {
        e_ident: Ident {
            magic: ELFMAG,
            class: ELFCLASS64,
            data: ELFDATA2LSB,
            version: EV_CURRENT,
            os_abi: ELFOSABI_NONE,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: U16::new(Little, ET_DYN),
        e_machine: U16::new(Little, PROCESSOR.machine),
        e_version: U32::new(Little, EV_CURRENT.0.into()),
        e_entry: U64::new(Little, 0),
        e_phoff: U64::new(Little, HEADER as u64),
        e_shoff: U64::new(Little, 0),
        e_flags: U32::new(Little, FileFlags(0)),
        e_ehsize: U16::new(Little, HEADER as u16),
        e_phentsize: U16::new(Little, size_of::<ProgramHeader64<Little>>() as u16),
        e_phnum: U16::new(Little, 3),
        e_shentsize: U16::new(Little, 0),
        e_shnum: U16::new(Little, 0),
        e_shstrndx: U16::new(Little, SymbolSection(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::{DYNAMIC, SYMBOLS, image};
    use object::LittleEndian;
    use object::elf::{FileHeader64, PT_DYNAMIC};
    use object::read::elf::{FileHeader, ProgramHeader};

    #[test]
    fn a_reader_of_such_files_finds_the_parts() {
        let image = image("own.so", ["first.so", "second.so"]);
        let header = FileHeader64::<LittleEndian>::parse(&*image).expect("a file of this kind");
        let segments = header.program_headers(LittleEndian, &*image).expect("program headers");
        assert_eq!(segments.len(), 3);
        let dynamic = segments.iter().find(|segment| segment.p_type(LittleEndian) == PT_DYNAMIC).expect("one of them");
        assert_eq!(dynamic.file_range(LittleEndian), (DYNAMIC as u64, (SYMBOLS - DYNAMIC) as u64));
        assert!(image.ends_with(b"\0own.so\0first.so\0second.so\0$ORIGIN\0"));
    }
}
