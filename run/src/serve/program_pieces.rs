//! The driver's handles of physical memory of the program: one, or one for each piece.
//!
//! ```text
//! created by the program   | handle                                  |
//! after a wake             | handle      | handle      | handle      |    each mapped, opened and copied before the next is created
//! ```
//!
//! Pieces come from the first to the last and go from the last to the first, so the handles are
//! always those of the memory's start.

use cachalot_cuda::driver::types::CuMemHandle;

/// Physical memory as the driver has it.
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    /// Bytes of the memory.
    total: u64,
    /// Bytes of each piece but the last, which may be shorter.
    each: u64,
    /// The driver's handles of the pieces that are there. Empty while parked.
    handles: Vec<CuMemHandle>,
}

/// A piece of physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// The offset in the memory, in bytes.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// `None`: the piece is not created yet.
    pub(super) handle: Option<CuMemHandle>,
}

impl Piece {
    /// Returns the offset after the piece.
    pub(super) const fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

impl Pieces {
    /// Returns memory that the driver has given whole.
    pub(super) fn whole(total: u64, handle: CuMemHandle) -> Self {
        Self { total, each: total, handles: vec![handle] }
    }

    /// Returns whether the driver has none of the memory.
    pub(super) const fn is_parked(&self) -> bool {
        self.handles.is_empty()
    }

    /// Returns whether the driver has the memory, or a part of it, in pieces.
    pub(super) const fn is_divided(&self) -> bool {
        self.each < self.total && !self.is_parked()
    }

    /// Returns the handle of memory that is whole.
    pub(super) fn single(&self) -> Option<CuMemHandle> {
        self.handles.first().copied().filter(|_| !self.is_divided())
    }

    /// Sets the bytes of the pieces to create: 0 for the whole memory. Does nothing while pieces
    /// are there.
    pub(super) fn divide(&mut self, each: u64) {
        if self.is_parked() {
            self.each = if each == 0 { self.total } else { each.min(self.total) };
        }
    }

    /// Returns all pieces from the start.
    pub(super) fn all(&self) -> Vec<Piece> {
        let mut handles = self.handles.iter().copied();
        let offsets = (0..).map(|nth| nth * self.each).take_while(|offset| *offset < self.total);
        offsets
            .map(|offset| Piece { offset, bytes: self.each.min(self.total - offset), handle: handles.next() })
            .collect()
    }

    /// Adds the first piece that was not there.
    pub(super) fn push(&mut self, handle: CuMemHandle) {
        self.handles.push(handle);
    }

    /// Returns the handle of the last piece that is there.
    pub(super) fn last(&self) -> Option<CuMemHandle> {
        self.handles.last().copied()
    }

    /// Takes the last piece out that is there.
    pub(super) fn pop(&mut self) {
        self.handles.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::{Piece, Pieces};
    use cachalot_cuda::driver::types::CuMemHandle;

    #[test]
    fn pieces_come_from_the_first_and_go_from_the_last() {
        let mut pieces = Pieces::whole(10, CuMemHandle(1));
        assert_eq!((pieces.single(), pieces.is_divided()), (Some(CuMemHandle(1)), false));
        pieces.divide(4);
        assert_eq!(pieces.all(), [Piece { offset: 0, bytes: 10, handle: Some(CuMemHandle(1)) }]);
        pieces.pop();
        assert!(pieces.is_parked() && !pieces.is_divided() && pieces.last().is_none());
        pieces.divide(4);
        let plan = |pieces: &Pieces| {
            pieces.all().iter().map(|piece| (piece.offset, piece.end(), piece.handle)).collect::<Vec<_>>()
        };
        assert_eq!(plan(&pieces), [(0, 4, None), (4, 8, None), (8, 10, None)]);
        pieces.push(CuMemHandle(2));
        // One handle of three is no handle of the memory.
        assert_eq!((pieces.single(), pieces.is_divided()), (None, true));
        pieces.push(CuMemHandle(3));
        assert_eq!(plan(&pieces), [(0, 4, Some(CuMemHandle(2))), (4, 8, Some(CuMemHandle(3))), (8, 10, None)]);
        assert_eq!(pieces.last(), Some(CuMemHandle(3)));
        pieces.pop();
        pieces.pop();
        for each in [10, u64::MAX, 0] {
            pieces.divide(each);
            assert_eq!(plan(&pieces), [(0, 10, None)], "{each}");
        }
    }
}
