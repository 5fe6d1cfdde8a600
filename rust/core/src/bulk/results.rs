//! The result columns: their names and types, and rows on their way into them.

use crate::plan::Row;

/// Hands the list of the result columns to another macro: each with its name, its type, and its value of a row, and of a
/// lane: of the lanes l, by the recipe r, at i.
macro_rules! results {
    ($with:ident) => {
        $with! {
            of row, of l r i;
            Status status U8 u8 = row.reasons.status() as u8, l.reasons[i].status() as u8;
            Reasons reasons U64 u64 = row.reasons.bits(), l.reasons[i].bits();
            WorldSize world_size I64 i64 = row.world_size, column(l.world_size[i]);
            DataParallel data_parallel I64 i64 = row.data_parallel, column(l.replicas[i]);
            MicroBatch micro_batch I32 i32 = narrow(row.micro_batch), narrow(column(l.micro_batch[i]));
            Accumulation accumulation I32 i32 = narrow(row.accumulation), narrow(column(l.accumulation[i]));
            EffectiveBatch effective_batch I64 i64 = row.effective_batch, column(l.batch[i]);
            BatchChange batch_change F64 f64 = row.batch_change, l.batch_change[i];
            Lr lr F64 f64 = row.lr, l.lr[i];
            LrScale lr_scale F64 f64 = row.lr_scale, l.lr_scale[i];
            Beta1 beta1 F64 f64 = row.moments.beta1, l.known(i, r.beta1);
            Beta2 beta2 F64 f64 = row.moments.beta2, l.known(i, r.beta2);
            Eps eps F64 f64 = row.moments.eps, l.known(i, r.eps);
            WeightDecay weight_decay F64 f64 = row.weight_decay, l.weight_decay[i];
            Momentum momentum F64 f64 = row.momentum, l.known(i, r.momentum);
            EmaDecay ema_decay F64 f64 = row.ema_decay, l.known(i, r.ema_decay);
            WarmupSteps warmup_steps I64 i64 = row.warmup_steps, column(l.warmup_steps[i]);
            StepsPerEpoch steps_per_epoch I64 i64 = row.steps_per_epoch, column(l.steps_per_epoch[i]);
            TotalSteps total_steps I64 i64 = row.total_steps, column(l.total_steps[i]);
            EvalSteps eval_steps I64 i64 = row.eval_steps, UNKNOWN;
            SaveSteps save_steps I64 i64 = row.save_steps, UNKNOWN;
            LogSteps log_steps I64 i64 = row.log_steps, UNKNOWN;
            SamplesPerEpoch samples_per_epoch I64 i64 = row.samples_per_epoch, column(l.samples_per_epoch[i]);
            PaddedSamples padded_samples I64 i64 = row.padded_samples, column(l.padded_samples[i]);
            DroppedSamples dropped_samples I64 i64 = row.dropped_samples, column(l.dropped_samples[i]);
            StepSeconds step_seconds F64 f64 = row.outlook.step_seconds, f64::NAN;
            StepError step_error F64 f64 = row.outlook.step_error, f64::NAN;
            SamplesPerSecond samples_per_second F64 f64 = row.outlook.samples_per_second, f64::NAN;
            Efficiency efficiency F64 f64 = row.outlook.efficiency, f64::NAN;
            Hours hours F64 f64 = row.outlook.hours, f64::NAN;
            GpuHours gpu_hours F64 f64 = row.outlook.gpu_hours, f64::NAN;
            Cost cost F64 f64 = row.outlook.cost, f64::NAN;
            MemoryGib memory_gib F64 f64 = row.outlook.memory_gib, f64::NAN;
            NearestWorldSize nearest_world_size I64 i64 = row.nearest_world_size.nearest, UNKNOWN;
            NearestBatch nearest_batch I64 i64 = row.nearest_batch.nearest, UNKNOWN;
        }
    };
}
pub(super) use results;

macro_rules! columns {
    (of $row:ident, of $lanes:ident $recipe:ident $i:ident;
     $($variant:ident $name:ident $element:ident $type:ty = $of_row:expr, $of_lane:expr;)*) => {
        /// A column of the result.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the columns are documented once, for users, in docs/fleet.md")]
        pub enum ResultColumn {
            $($variant,)*
        }

        impl ResultColumn {
            /// Every column, in the order of the table.
            pub const ALL: &'static [ResultColumn] = &[$(ResultColumn::$variant,)*];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(ResultColumn::$variant => stringify!($name),)* }
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
            pub(super) fn write(self, rows: &[Row], places: impl Iterator<Item = usize>, out: &mut ResultSlice<'_>) {
                match (self, out) {
                    $((ResultColumn::$variant, ResultSlice::$element(out)) => for ($row, place) in rows.iter().zip(places) {
                        out[place] = $of_row;
                    })*
                    (column, _) => unreachable!("{column:?} in a column of another type"),
                }
            }
        }
    };
}

results!(columns);

#[allow(clippy::cast_possible_truncation, reason = "bounded by the planner")]
pub(super) fn narrow(n: i64) -> i32 {
    n as i32
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
                match self { $(ResultSlice::$kind(s) => { let (a, b) = s.split_at_mut(mid); (ResultSlice::$kind(a), ResultSlice::$kind(b)) })* }
            };
        }
        halves!(U8 U64 I32 I64 F64)
    }
}
