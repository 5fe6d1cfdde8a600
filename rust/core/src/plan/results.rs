//! The result columns, each declared once.

/// Hands the list of the result columns to another macro.
///
/// From this list come the fields of [`Row`](super::Row) and their unknown values (`row.rs`), the columns of
/// a fleet (`bulk/results.rs`), how the lanes write them (`bulk/lanes/write.rs`), a plan's values in Python
/// (`rust/py/src/plan.rs`), and the table in `docs/fleet.md`. An entry starts with the text that users read
/// of the column, its variant in `ResultColumn` and its name, and has these fields:
///
/// - `type`: of the field of that name in Row; left out where the value comes from one of Row's parts.
/// - `element`: the `ElementType` of the column.
/// - `moved`: how the value of a moved run follows from its legs. `last`: it is that of the last leg; `sum`:
///   each leg adds its part; `course`: it is worked out anew from all legs
///   (`python/isobatch/planning/course.py`).
/// - `role`: a training script follows a `decision`, so that each tool's writer writes it or lists it as left
///   out; a `figure` is about the plan.
/// - `row`: the value of `row`, in the planner of single rows.
/// - `lane`: the value of the lanes `l` by the recipe `r`, at `i`. The lanes plan without a profile, and
///   leave unusual rows to the planner of single rows; the tests in `bulk/lanes/tests` compare both values.
macro_rules! results {
    ($with:ident) => {
        $with! {
            of row, of l r i;
            /// ok, caution or infeasible
            Status status {
                element: U8, moved: last, role: figure,
                row: row.reasons.status() as u8, lane: l.reasons[i].status() as u8,
            }
            /// see [reasons](reasons.md); `ib.Reason.of` reads the column
            Reasons reasons {
                element: U64, moved: last, role: figure,
                row: row.reasons.bits(), lane: l.reasons[i].bits(),
            }
            /// GPUs; also where the job cannot be planned
            WorldSize world_size {
                type: i64, element: I64, moved: last, role: figure,
                row: row.world_size, lane: column(l.world_size[i]),
            }
            /// replicas
            DataParallel data_parallel {
                type: i64, element: I64, moved: last, role: figure,
                row: row.data_parallel, lane: column(l.replicas[i]),
            }
            /// samples per replica in a forward and backward pass
            MicroBatch micro_batch {
                type: i64, element: I32, moved: last, role: decision,
                row: narrow(row.micro_batch), lane: narrow(column(l.micro_batch[i])),
            }
            /// micro-batches in an optimizer step
            Accumulation accumulation {
                type: i64, element: I32, moved: last, role: decision,
                row: narrow(row.accumulation), lane: narrow(column(l.accumulation[i])),
            }
            /// samples in an optimizer step
            EffectiveBatch effective_batch {
                type: i64, element: I64, moved: last, role: decision,
                row: row.effective_batch, lane: column(l.batch[i]),
            }
            /// effective batch / tuned effective batch − 1
            BatchChange batch_change {
                type: f64, element: F64, moved: last, role: figure,
                row: row.batch_change, lane: l.batch_change[i],
            }
            /// the peak learning rate
            Lr lr {
                type: f64, element: F64, moved: last, role: decision,
                row: row.lr, lane: l.lr[i],
            }
            /// lr / tuned lr
            LrScale lr_scale {
                type: f64, element: F64, moved: last, role: figure,
                row: row.lr_scale, lane: l.lr_scale[i],
            }
            /// the optimizer's; its default if the recipe names none
            Beta1 beta1 {
                element: F64, moved: last, role: decision,
                row: row.moments.beta1, lane: l.known(i, r.beta1),
            }
            /// the optimizer's; its default if the recipe names none
            Beta2 beta2 {
                element: F64, moved: last, role: decision,
                row: row.moments.beta2, lane: l.known(i, r.beta2),
            }
            /// the optimizer's; its default if the recipe names none
            Eps eps {
                element: F64, moved: last, role: decision,
                row: row.moments.eps, lane: l.known(i, r.eps),
            }
            /// the optimizer's
            WeightDecay weight_decay {
                type: f64, element: F64, moved: last, role: decision,
                row: row.weight_decay, lane: l.weight_decay[i],
            }
            /// SGD's, as in the recipe
            Momentum momentum {
                type: f64, element: F64, moved: last, role: decision,
                row: row.momentum, lane: l.known(i, r.momentum),
            }
            /// per step
            EmaDecay ema_decay {
                type: f64, element: F64, moved: last, role: decision,
                row: row.ema_decay, lane: l.known(i, r.ema_decay),
            }
            /// optimizer steps
            WarmupSteps warmup_steps {
                type: i64, element: I64, moved: course, role: decision,
                row: row.warmup_steps, lane: column(l.warmup_steps[i]),
            }
            /// optimizer steps
            StepsPerEpoch steps_per_epoch {
                type: i64, element: I64, moved: last, role: figure,
                row: row.steps_per_epoch, lane: column(l.steps_per_epoch[i]),
            }
            /// optimizer steps of the run
            TotalSteps total_steps {
                type: i64, element: I64, moved: course, role: decision,
                row: row.total_steps, lane: column(l.total_steps[i]),
            }
            /// optimizer steps between two evaluations
            EvalSteps eval_steps {
                type: i64, element: I64, moved: last, role: decision,
                row: row.eval_steps, lane: UNKNOWN,
            }
            /// optimizer steps between two checkpoints
            SaveSteps save_steps {
                type: i64, element: I64, moved: last, role: decision,
                row: row.save_steps, lane: UNKNOWN,
            }
            /// optimizer steps between two lines of the log
            LogSteps log_steps {
                type: i64, element: I64, moved: last, role: decision,
                row: row.log_steps, lane: UNKNOWN,
            }
            /// over all replicas, padding included
            SamplesPerEpoch samples_per_epoch {
                type: i64, element: I64, moved: last, role: figure,
                row: row.samples_per_epoch, lane: column(l.samples_per_epoch[i]),
            }
            /// samples repeated as padding
            PaddedSamples padded_samples {
                type: i64, element: I64, moved: last, role: figure,
                row: row.padded_samples, lane: column(l.padded_samples[i]),
            }
            /// samples left out of an epoch
            DroppedSamples dropped_samples {
                type: i64, element: I64, moved: last, role: figure,
                row: row.dropped_samples, lane: column(l.dropped_samples[i]),
            }
            /// seconds an optimizer step takes, by the profile ([forecast](forecast.md))
            StepSeconds step_seconds {
                element: F64, moved: last, role: figure,
                row: row.outlook.step_seconds, lane: f64::NAN,
            }
            /// half the width of its 95 % interval
            StepError step_error {
                element: F64, moved: last, role: figure,
                row: row.outlook.step_error, lane: f64::NAN,
            }
            /// over all replicas
            SamplesPerSecond samples_per_second {
                element: F64, moved: last, role: figure,
                row: row.outlook.samples_per_second, lane: f64::NAN,
            }
            /// speed / speed of the same split without communication
            Efficiency efficiency {
                element: F64, moved: last, role: figure,
                row: row.outlook.efficiency, lane: f64::NAN,
            }
            /// of the whole run
            Hours hours {
                element: F64, moved: sum, role: figure,
                row: row.outlook.hours, lane: f64::NAN,
            }
            /// half the width of [its range](forecast.md#the-range); the same share of GPU-hours and cost
            HoursError hours_error {
                element: F64, moved: sum, role: figure,
                row: row.outlook.hours_error, lane: f64::NAN,
            }
            /// hours × GPUs
            GpuHours gpu_hours {
                element: F64, moved: sum, role: figure,
                row: row.outlook.gpu_hours, lane: f64::NAN,
            }
            /// GPU-hours × `price_per_gpu_hour`
            Cost cost {
                element: F64, moved: sum, role: figure,
                row: row.outlook.cost, lane: f64::NAN,
            }
            /// per GPU
            MemoryGib memory_gib {
                element: F64, moved: last, role: figure,
                row: row.outlook.memory_gib, lane: f64::NAN,
            }
            /// if nothing divides: the nearest GPU count that works
            NearestWorldSize nearest_world_size {
                element: I64, moved: last, role: figure,
                row: row.nearest_world_size.nearest, lane: column(l.nearest_world_size[i]),
            }
            /// if nothing divides: the nearest batch that works
            NearestBatch nearest_batch {
                element: I64, moved: last, role: figure,
                row: row.nearest_batch.nearest, lane: column(l.nearest_batch[i]),
            }
            /// learning rate at the start of the warmup (only if requested)
            WarmupLr warmup_lr {
                type: f64, element: F64, moved: course, role: decision,
                row: row.warmup_lr, lane: l.known(i, r.warmup_lr(l.k[i])),
            }
            /// learning rate at the end of the schedule (only if requested)
            MinLr min_lr {
                type: f64, element: F64, moved: last, role: decision,
                row: row.min_lr, lane: l.known(i, r.min_lr * l.lr_scale[i]),
            }
        }
    };
}
pub(crate) use results;
