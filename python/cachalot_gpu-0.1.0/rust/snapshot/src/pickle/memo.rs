//! The values to which a pickle refers by number.

use std::collections::HashMap;

/// Node numbers by the pickle's numbers, which are usually consecutive from 0.
#[derive(Default)]
pub(super) struct Memo {
    dense: Vec<u32>,
    sparse: HashMap<u32, u32>,
}

impl Memo {
    pub(super) fn insert(&mut self, number: u32, node: u32) {
        let next = self.dense.len();
        match number as usize {
            number if number < next => self.dense[number] = node,
            number if number == next => self.dense.push(node),
            _ => _ = self.sparse.insert(number, node),
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<u32> {
        self.dense.get(number as usize).or_else(|| self.sparse.get(&number)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::Memo;

    #[test]
    fn numbers_come_in_any_order_and_again() {
        let mut memo = Memo::default();
        for (number, node) in [(0, 5), (u32::MAX, 6), (1, 7), (0, 8), (3, 9), (2, 10), (3, 11)] {
            memo.insert(number, node);
            assert_eq!(memo.get(number), Some(node));
        }
        assert_eq!([0, 1, 2, 3, 4].map(|number| memo.get(number)), [Some(8), Some(7), Some(10), Some(11), None]);
        assert_eq!(memo.get(u32::MAX), Some(6));
    }
}
