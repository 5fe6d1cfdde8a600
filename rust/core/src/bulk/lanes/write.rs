//! Lanes on their way into the result columns.

use multiversion::multiversion;

use super::arithmetic::{At, BLOCK, column};
use super::block::Lanes;
use super::recipe::LaneRecipe;
use crate::bulk::results::{ResultColumn, ResultSlice, narrow};
use crate::plan::UNKNOWN;
use crate::plan::results::results;
use crate::reason::Reasons;

macro_rules! write_lanes {
    (of $row:ident, of $lanes:ident $recipe:ident $i:ident;
     $(#[doc = $text:literal] $variant:ident $name:ident {
         $(type: $field:ty,)? element: $element:ident, moved: $moved:ident, role: $role:ident,
         row: $of_row:expr, lane: $of_lane:expr,
     })*) => {
        /// Writes this column of the first `rows` lanes from `at` on.
        ///
        /// # Panics
        /// Where the type of `out` is not the column's [`element`](ResultColumn::element).
        #[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
        #[allow(unused_variables, reason = "by some of the columns")]
        pub(super) fn write_lanes<T: At<f64>, R: At<Reasons>>(
            column: ResultColumn,
            lanes: &Lanes,
            $recipe: &LaneRecipe<T, R>,
            out: &mut ResultSlice<'_>,
            at: usize,
            rows: usize,
        ) {
            match (column, out) {
                $((ResultColumn::$variant, ResultSlice::$element(out)) => {
                    let $lanes = lanes;
                    for ($i, out) in out[at..at + rows.min(BLOCK)].iter_mut().enumerate() {
                        let $recipe = &$recipe.lane($i);
                        *out = $of_lane;
                    }
                })*
                (column, _) => unreachable!("{column:?} in a column of another type"),
            }
        }
    };
}

results!(write_lanes);
