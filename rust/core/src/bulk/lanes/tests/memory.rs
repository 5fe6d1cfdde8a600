//! Memory for result columns of any type.

use crate::bulk::{ElementType, ResultSlice};

/// A column's memory, whatever its type.
pub enum Memory {
    U8(Vec<u8>),
    U64(Vec<u64>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

macro_rules! each {
    ($memory:expr, |$values:ident| $do:expr) => {
        match $memory {
            Memory::U8($values) => $do,
            Memory::U64($values) => $do,
            Memory::I32($values) => $do,
            Memory::I64($values) => $do,
            Memory::F64($values) => $do,
        }
    };
}

impl Memory {
    pub fn new(kind: ElementType, rows: usize) -> Memory {
        match kind {
            ElementType::U8 => Memory::U8(vec![77; rows]),
            ElementType::U64 => Memory::U64(vec![77; rows]),
            ElementType::I32 => Memory::I32(vec![77; rows]),
            ElementType::I64 => Memory::I64(vec![77; rows]),
            ElementType::F64 => Memory::F64(vec![77.0; rows]),
        }
    }

    pub fn out(&mut self) -> ResultSlice<'_> {
        match self {
            Memory::U8(v) => ResultSlice::U8(v),
            Memory::U64(v) => ResultSlice::U64(v),
            Memory::I32(v) => ResultSlice::I32(v),
            Memory::I64(v) => ResultSlice::I64(v),
            Memory::F64(v) => ResultSlice::F64(v),
        }
    }

    /// The column's value in a row, to the bit but for NaN, which is one value.
    pub fn text(&self, row: usize) -> String {
        each!(self, |values| format!("{:?}", values[row]))
    }
}
