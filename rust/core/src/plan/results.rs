//! The result columns, each declared once.

/// Hands the list of the result columns to another macro.
///
/// From this list come the fields of [`Row`](super::Row) and their unknown values (`row.rs`), the columns of a fleet
/// (`bulk/results.rs`), how the lanes write them (`bulk/lanes/write.rs`), a plan's values in Python (`rust/py/src/plan.rs`), and
/// the table in `docs/fleet.md`. An entry is what users read of the column, and
///
/// ```text
/// Variant name (type) ELEMENT legs role = value of a row, value of a lane;
/// ```
///
/// with its variant in `ResultColumn`; its name everywhere; the type of the field of that name in Row, where it is one and not
/// in one of Row's parts; the `ElementType` of its column; what it is of a run that was moved, and so has legs (`last`: as the last
/// leg has it; `sum`: each leg adds its part; `course`: worked out anew of all legs; `python/isobatch/planning/course.py` has how);
/// its role (`decision`: a training script follows it, and each tool's writer says it or lists it as left out; `figure`: it is about
/// the plan); its value of `row`; and its value in the lanes `l`, by the recipe
/// `r`, at `i`. The lanes plan without a profile, and leave to the planner of single rows what is not usual; whether the two
/// values are the same is what the tests in `bulk/lanes/tests` ask.
macro_rules! results {
    ($with:ident) => {
        $with! {
            of row, of l r i;
            /// ok, caution or infeasible
            Status status U8 last figure = row.reasons.status() as u8, l.reasons[i].status() as u8;
            /// see [reasons](reasons.md); `ib.Reason.of` reads the column
            Reasons reasons U64 last figure = row.reasons.bits(), l.reasons[i].bits();
            /// GPUs; also where the job cannot be planned
            WorldSize world_size (i64) I64 last figure = row.world_size, column(l.world_size[i]);
            /// replicas
            DataParallel data_parallel (i64) I64 last figure = row.data_parallel, column(l.replicas[i]);
            /// samples per replica in a forward and backward pass
            MicroBatch micro_batch (i64) I32 last decision = narrow(row.micro_batch), narrow(column(l.micro_batch[i]));
            /// micro-batches in an optimizer step
            Accumulation accumulation (i64) I32 last decision = narrow(row.accumulation), narrow(column(l.accumulation[i]));
            /// samples in an optimizer step
            EffectiveBatch effective_batch (i64) I64 last decision = row.effective_batch, column(l.batch[i]);
            /// effective batch / tuned effective batch − 1
            BatchChange batch_change (f64) F64 last figure = row.batch_change, l.batch_change[i];
            /// the peak
            Lr lr (f64) F64 last decision = row.lr, l.lr[i];
            /// lr / tuned lr
            LrScale lr_scale (f64) F64 last figure = row.lr_scale, l.lr_scale[i];
            /// the optimizer's; its default where the recipe names none
            Beta1 beta1 F64 last decision = row.moments.beta1, l.known(i, r.beta1);
            /// the optimizer's; its default where the recipe names none
            Beta2 beta2 F64 last decision = row.moments.beta2, l.known(i, r.beta2);
            /// the optimizer's; its default where the recipe names none
            Eps eps F64 last decision = row.moments.eps, l.known(i, r.eps);
            /// the optimizer's
            WeightDecay weight_decay (f64) F64 last decision = row.weight_decay, l.weight_decay[i];
            /// of SGD; the recipe's
            Momentum momentum (f64) F64 last decision = row.momentum, l.known(i, r.momentum);
            /// a step
            EmaDecay ema_decay (f64) F64 last decision = row.ema_decay, l.known(i, r.ema_decay);
            /// optimizer steps
            WarmupSteps warmup_steps (i64) I64 course decision = row.warmup_steps, column(l.warmup_steps[i]);
            /// optimizer steps
            StepsPerEpoch steps_per_epoch (i64) I64 last figure = row.steps_per_epoch, column(l.steps_per_epoch[i]);
            /// optimizer steps of the run
            TotalSteps total_steps (i64) I64 course decision = row.total_steps, column(l.total_steps[i]);
            /// optimizer steps between two evaluations
            EvalSteps eval_steps (i64) I64 last decision = row.eval_steps, UNKNOWN;
            /// optimizer steps between two checkpoints
            SaveSteps save_steps (i64) I64 last decision = row.save_steps, UNKNOWN;
            /// optimizer steps between two lines of the log
            LogSteps log_steps (i64) I64 last decision = row.log_steps, UNKNOWN;
            /// over all replicas, with those repeated as padding
            SamplesPerEpoch samples_per_epoch (i64) I64 last figure = row.samples_per_epoch, column(l.samples_per_epoch[i]);
            /// those repeated as padding
            PaddedSamples padded_samples (i64) I64 last figure = row.padded_samples, column(l.padded_samples[i]);
            /// left out of an epoch
            DroppedSamples dropped_samples (i64) I64 last figure = row.dropped_samples, column(l.dropped_samples[i]);
            /// seconds an optimizer step takes, by the profile ([forecast](forecast.md))
            StepSeconds step_seconds F64 last figure = row.outlook.step_seconds, f64::NAN;
            /// half the width of its 95 % interval
            StepError step_error F64 last figure = row.outlook.step_error, f64::NAN;
            /// over all replicas
            SamplesPerSecond samples_per_second F64 last figure = row.outlook.samples_per_second, f64::NAN;
            /// speed over that of the same split without communication
            Efficiency efficiency F64 last figure = row.outlook.efficiency, f64::NAN;
            /// of the whole run
            Hours hours F64 sum figure = row.outlook.hours, f64::NAN;
            /// half the width of their range, in hours ([the range](forecast.md#the-range)); in percent that of GPU-hours and cost
            HoursError hours_error F64 sum figure = row.outlook.hours_error, f64::NAN;
            /// hours × GPUs
            GpuHours gpu_hours F64 sum figure = row.outlook.gpu_hours, f64::NAN;
            /// GPU-hours × `price_per_gpu_hour`
            Cost cost F64 sum figure = row.outlook.cost, f64::NAN;
            /// on a GPU
            MemoryGib memory_gib F64 last figure = row.outlook.memory_gib, f64::NAN;
            /// where nothing divides: the nearest GPU count that works
            NearestWorldSize nearest_world_size I64 last figure = row.nearest_world_size.nearest, column(l.nearest_world_size[i]);
            /// and the nearest batch
            NearestBatch nearest_batch I64 last figure = row.nearest_batch.nearest, column(l.nearest_batch[i]);
            /// the learning rate where the warmup starts (by request)
            WarmupLr warmup_lr (f64) F64 course decision = row.warmup_lr, l.known(i, r.warmup_lr(l.k[i]));
            /// the learning rate where the schedule ends (by request)
            MinLr min_lr (f64) F64 last decision = row.min_lr, l.known(i, r.min_lr * l.lr_scale[i]);
        }
    };
}
pub(crate) use results;
