//! Memory for result columns of any type.

use crate::fleet::{Kind, Out};

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
    pub fn new(kind: Kind, rows: usize) -> Memory {
        match kind {
            Kind::U8 => Memory::U8(vec![77; rows]),
            Kind::U64 => Memory::U64(vec![77; rows]),
            Kind::I32 => Memory::I32(vec![77; rows]),
            Kind::I64 => Memory::I64(vec![77; rows]),
            Kind::F64 => Memory::F64(vec![77.0; rows]),
        }
    }

    pub fn out(&mut self) -> Out<'_> {
        match self {
            Memory::U8(v) => Out::U8(v),
            Memory::U64(v) => Out::U64(v),
            Memory::I32(v) => Out::I32(v),
            Memory::I64(v) => Out::I64(v),
            Memory::F64(v) => Out::F64(v),
        }
    }

    /// What the column holds, to the bit but for NaN, which is one value.
    pub fn text(&self, row: usize) -> String {
        each!(self, |values| format!("{:?}", values[row]))
    }
}
