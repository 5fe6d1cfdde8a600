//! An epoch, as real samplers, loaders and trainers count it.

use super::Unit;

/// The trainer that counts the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// `DistributedSampler` and `DataLoader`; a partial accumulation steps at the end of the epoch.
    Torch,
    /// Lightning's Trainer: ⌈batches / accumulation⌉ · epochs.
    Lightning,
    /// Transformers' Trainer over Accelerate's loader, which fills up the last batch of each process.
    Transformers,
    /// Megatron's: no epochs, and the end is floored.
    Megatron,
    /// Whole steps are dealt out, whatever the replicas: nothing is padded, and the last step holds what is
    /// left.
    Exact,
}

impl Convention {
    /// Whether its tool floors a warmup in this unit: Transformers' Trainer rounds a share of the run up, all
    /// others down, and Megatron floors tokens to whole steps.
    pub(crate) fn floors_warmup(self, unit: Unit) -> bool {
        match unit {
            Unit::Percent => self != Convention::Transformers,
            Unit::Tokens => self == Convention::Megatron,
            Unit::Epochs | Unit::Steps | Unit::Samples => false,
        }
    }

    /// The names that users write, in the order of the variants.
    pub const ALL: [(&'static str, Convention); 5] = [
        ("torch", Convention::Torch),
        ("lightning", Convention::Lightning),
        ("transformers", Convention::Transformers),
        ("megatron", Convention::Megatron),
        ("exact", Convention::Exact),
    ];
}

/// The samples left out at the end of an epoch: by the sampler, by the loader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropLast {
    /// The sampler cuts the dataset to a multiple of the replicas, where it would else repeat samples.
    pub sampler: bool,
    /// The loader leaves out a last, smaller micro-batch.
    pub loader: bool,
}

/// One epoch as it is really run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Optimizer steps.
    pub steps: u64,
    /// Samples that the replicas see together, repeats included.
    pub served: u64,
    /// Of these, repeats that fill up.
    pub padded: u64,
    /// Samples of the dataset that nobody sees.
    pub dropped: u64,
    /// The last step holds fewer samples than the others, in more than one micro-batch.
    pub uneven_tail: bool,
}

/// How the samples of a step are laid out over replicas and micro-batches.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Samples in a step.
    pub effective_batch: u64,
    /// Replicas.
    pub data_parallel: u64,
    /// Samples in a (full) micro-batch.
    pub micro_batch: u64,
    /// Micro-batches in a step.
    pub accumulation: u64,
    /// Whether micro-batches may differ in size, which a plain loader cannot serve: whole steps are cut from
    /// the dataset.
    pub ragged: bool,
}

impl DropLast {
    /// Nothing.
    pub const NONE: DropLast = DropLast::both(false);

    /// The same for both.
    #[must_use]
    pub const fn both(drop: bool) -> DropLast {
        DropLast { sampler: drop, loader: drop }
    }
}

impl Epoch {
    /// The arithmetic of an epoch over `dataset` samples, of what is left of it behind the first `offset`.
    /// `steps` is 0 where that gives no full micro-batch. Padding and dropping are as if the rest were a
    /// dataset of its own. Exact steps take any number of samples, and so do those whose micro-batches
    /// differ: they need no padding. `fills` says whether Accelerate fills up the last micro-batches of the
    /// processes (its `even_batches`).
    #[must_use]
    #[inline]
    pub fn rest(
        dataset: u64,
        offset: u64,
        layout: Layout,
        drop: DropLast,
        convention: Convention,
        fills: bool,
    ) -> Epoch {
        let Layout { effective_batch, data_parallel, micro_batch, accumulation, ragged } = layout;
        let pass = micro_batch * data_parallel;
        let sampled = |n: u64| if drop.sampler { n / data_parallel } else { n.div_ceil(data_parallel) };
        let rest = dataset.saturating_sub(offset);
        let exact = ragged || convention == Convention::Exact;
        let (steps, served) = if exact && (drop.sampler || drop.loader) {
            (rest / effective_batch, rest / effective_batch * effective_batch)
        } else if exact {
            (rest.div_ceil(effective_batch), rest)
        } else {
            let (passes, served) = match (convention, drop.loader) {
                // Accelerate cuts whole micro-batches first, and fills the last ones from the start of the
                // dataset; where there is one process, it leaves the loader alone. Where it fills nothing up,
                // the first process takes the steps that are counted here, and others may have fewer.
                (Convention::Transformers, false) if data_parallel == 1 || !fills => {
                    (rest.div_ceil(pass), rest)
                }
                (Convention::Transformers, true) => (rest / pass, rest / pass * pass),
                (Convention::Transformers, false) => (rest.div_ceil(pass), rest.div_ceil(pass) * pass),
                (_, true) => (sampled(rest) / micro_batch, sampled(rest) / micro_batch * pass),
                (_, false) => (sampled(rest).div_ceil(micro_batch), sampled(rest) * data_parallel),
            };
            (passes.div_ceil(accumulation), served)
        };
        Epoch {
            steps,
            served,
            padded: served.saturating_sub(rest),
            dropped: rest.saturating_sub(served),
            uneven_tail: (accumulation > 1 || exact || !fills) && served != steps * effective_batch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(data_parallel: u64, micro_batch: u64, accumulation: u64) -> Layout {
        let effective_batch = data_parallel * micro_batch * accumulation;
        Layout { effective_batch, data_parallel, micro_batch, accumulation, ragged: false }
    }

    proptest! {
        #[test]
        fn served_and_dropped_samples_of_an_epoch_add_up(
            dataset in 1u64..5000, dp in 1u64..9, micro in 1u64..40, accumulation in 1u64..5,
            sampler: bool, loader: bool, ragged: bool, convention in 0usize..5,
        ) {
            let layout = Layout { ragged, ..plain(dp, micro, accumulation) };
            let convention = Convention::ALL[convention].1;
            let e = Epoch::rest(dataset, 0, layout, DropLast { sampler, loader }, convention, true);
            prop_assert_eq!(dataset + e.padded, e.served + e.dropped);
            prop_assert!(e.padded == 0 || e.dropped == 0);
            prop_assert!(e.served <= e.steps * layout.effective_batch);
        }

        #[test]
        fn an_epoch_resumes_after_any_of_its_steps(
            dataset in 1u64..2000, dp in 1u64..9, micro in 1u64..20, accumulation in 1u64..5, less in 0u64..9,
            sampler: bool, loader: bool, ragged: bool, convention in 0usize..5,
        ) {
            let mut layout = Layout { ragged, ..plain(dp, micro, accumulation) };
            if ragged {
                layout.effective_batch -= less.min(layout.effective_batch - 1);
            }
            let (drop, convention) = (DropLast { sampler, loader }, Convention::ALL[convention].1);
            let whole = Epoch::rest(dataset, 0, layout, drop, convention, true);
            for step in 0..whole.steps {
                let done = step * layout.effective_batch;
                let rest = Epoch::rest(dataset, done, layout, drop, convention, true);
                prop_assert_eq!((rest.steps, rest.served), (whole.steps - step, whole.served - done));
            }
        }
    }
}
