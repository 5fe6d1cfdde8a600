//! The result columns as a fleet has them, and rows on their way into them.

use crate::forecast::Outlook;
use crate::plan::Row;
use crate::plan::results::results;

macro_rules! columns {
    (of $row:ident, of $lanes:ident $recipe:ident $i:ident;
     $(#[doc = $text:literal] $variant:ident $name:ident {
         $(type: $field:ty,)? element: $element:ident, moved: $moved:ident, role: $role:ident,
         row: $of_row:expr, lane: $of_lane:expr,
     })*) => {
        /// A column of the result.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ResultColumn {
            $(#[doc = $text] $variant,)*
        }

        impl ResultColumn {
            /// Every column, in the order of the table.
            pub const ALL: &'static [ResultColumn] = &[$(ResultColumn::$variant,)*];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(ResultColumn::$variant => stringify!($name),)* }
            }

            /// Its description, for users.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self { $(ResultColumn::$variant => $text.trim_ascii(),)* }
            }

            /// Whether only a profile says it.
            #[must_use]
            pub fn needs_profile(self) -> bool {
                Outlook::NAMES.contains(&self.name())
            }

            /// How the value of a moved run follows from its legs: `last`, `sum` or `course`.
            #[must_use]
            pub fn moved(self) -> &'static str {
                match self { $(ResultColumn::$variant => stringify!($moved),)* }
            }

            /// Its role in a training script: a `decision` that it follows, or a `figure` about the plan.
            #[must_use]
            pub fn role(self) -> &'static str {
                match self { $(ResultColumn::$variant => stringify!($role),)* }
            }

            /// Its type.
            #[must_use]
            pub fn element(self) -> ElementType {
                match self { $(ResultColumn::$variant => ElementType::$element,)* }
            }

            /// Whether it says what would work instead of what does not.
            pub(super) fn is_way_out(self) -> bool {
                matches!(self, ResultColumn::NearestWorldSize | ResultColumn::NearestBatch)
            }

            /// Writes this column of rows, each to its place.
            ///
            /// # Panics
            /// Where the type of `out` is not the column's [`element`](ResultColumn::element).
            pub(super) fn write(
                self,
                rows: &[Row],
                places: impl Iterator<Item = usize>,
                out: &mut ResultSlice<'_>,
            ) {
                match (self, out) {
                    $((ResultColumn::$variant, ResultSlice::$element(out)) => {
                        for ($row, place) in rows.iter().zip(places) {
                            out[place] = $of_row;
                        }
                    })*
                    (column, _) => unreachable!("{column:?} in a column of another type"),
                }
            }
        }

        impl Row {
            /// Its values in the order of [`ResultColumn::ALL`].
            #[must_use]
            pub fn cells(&self) -> [Cell; ResultColumn::ALL.len()] {
                let $row = self;
                [$(Cell::$element($of_row),)*]
            }
        }
    };
}

results!(columns);

#[allow(clippy::cast_possible_truncation, reason = "bounded by the planner")]
pub(super) fn narrow(n: i64) -> i32 {
    n as i32
}

/// A value of a row, as its column has it.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "named as the types they hold")]
pub enum Cell {
    U8(u8),
    U64(u64),
    I32(i32),
    I64(i64),
    F64(f64),
}

/// The element type of a result column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as the types they stand for")]
pub enum ElementType {
    U8,
    U64,
    I32,
    I64,
    F64,
}

/// Memory for a result column.
#[derive(Debug)]
#[allow(missing_docs, reason = "named as the types they hold")]
pub enum ResultSlice<'a> {
    U8(&'a mut [u8]),
    U64(&'a mut [u64]),
    I32(&'a mut [i32]),
    I64(&'a mut [i64]),
    F64(&'a mut [f64]),
}

impl<'a> ResultSlice<'a> {
    pub(crate) fn len(&self) -> usize {
        match self {
            ResultSlice::U8(s) => s.len(),
            ResultSlice::U64(s) => s.len(),
            ResultSlice::I32(s) => s.len(),
            ResultSlice::I64(s) => s.len(),
            ResultSlice::F64(s) => s.len(),
        }
    }

    pub(crate) fn split_at(self, mid: usize) -> (ResultSlice<'a>, ResultSlice<'a>) {
        macro_rules! halves {
            ($($kind:ident)*) => {
                match self {
                    $(ResultSlice::$kind(slice) => {
                        let (start, end) = slice.split_at_mut(mid);
                        (ResultSlice::$kind(start), ResultSlice::$kind(end))
                    })*
                }
            };
        }
        halves!(U8 U64 I32 I64 F64)
    }
}
