//! A job with its settings as the lanes plan it, one for all lanes or one for each.

use super::arithmetic::{At, BLOCK};
use super::length::LaneLength;
use crate::reason::Reasons;

macro_rules! recipe {
    (numbers: $($(#[$of_number:meta])* $number:ident)*; kind: $($(#[$doc:meta])* $name:ident)*;) => {
        /// One for all lanes, or one for each. Flags are 0 or 1, a number that is not known is NaN.
        #[derive(Clone, Debug)]
        pub(crate) struct LaneRecipe<T, R> {
            $($(#[$of_number])* pub $number: T,)*
            $($(#[$doc])* pub $name: T,)*
            pub total: LaneLength<T>,
            pub warmup: LaneLength<T>,
            /// Cautions that hold in any case, those that hold if the learning rate moves, and those that may
            /// hold at all.
            pub always: R,
            pub if_moved: R,
            pub possible: R,
        }

        impl<T: At<f64>, R: At<Reasons>> LaneRecipe<T, R> {
            /// The recipe of a lane; a number that is not read costs nothing.
            #[inline(always)]
            pub fn lane(&self, lane: usize) -> ScalarRecipe {
                LaneRecipe {
                    $($number: self.$number.at(lane),)*
                    $($name: self.$name.at(lane),)*
                    total: self.total.lane(lane),
                    warmup: self.warmup.lane(lane),
                    always: self.always.at(lane),
                    if_moved: self.if_moved.at(lane),
                    possible: self.possible.at(lane),
                }
            }
        }

        impl RecipePerLane {
            pub fn new() -> Self {
                LaneRecipe {
                    $($number: [1.0; BLOCK],)*
                    $($name: [1.0; BLOCK],)*
                    total: LaneLength::new(),
                    warmup: LaneLength::new(),
                    always: [Reasons::default(); BLOCK],
                    if_moved: [Reasons::default(); BLOCK],
                    possible: [Reasons::default(); BLOCK],
                }
            }

            /// Takes the numbers of one recipe into every lane.
            pub fn share(&mut self, recipe: &ScalarRecipe) {
                $(self.$number = [recipe.$number; BLOCK];)*
            }

            /// Takes the rest of a lane's recipe.
            #[inline]
            pub fn set(&mut self, lane: usize, recipe: &ScalarRecipe) {
                $(self.$name[lane] = recipe.$name;)*
                self.total.set(lane, &recipe.total);
                self.warmup.set(lane, &recipe.warmup);
                self.always[lane] = recipe.always;
                self.if_moved[lane] = recipe.if_moved;
                self.possible[lane] = recipe.possible;
            }
        }
    };
}

recipe! {
    numbers:
    tuned_batch lr weight_decay momentum ema_decay noise min_lr
    micro_batch accumulation gpus model_parallel expert_parallel max_micro_batch
    /// 0 where they are not known.
    dataset seq_len
    /// Of a number that the lanes do not depend on.
    unused;
    kind: // The same for many jobs.
    /// The batch to reach is this, and the tuned one where it is kept, or so much more for each replica.
    batch keeps grows
    linear root
    /// Whether `saturating` takes their place where the noise scale is known.
    bends
    beta1 beta2
    decay_moves decay_by_lr decay_unsaid
    /// Whether the trainer counts epochs.
    epochs
    sampler_up loader_up
    /// From so many replicas on, an epoch serves whole micro-batches only.
    whole_from
    ends warms
    /// Whether a length is counted in these.
    in_epochs in_tokens
    /// The share of the run that a warmup may take less a step, so that the schedule certainly has room.
    most_warmup
    second_moment_steps
    /// By the recipe, else by the optimizer.
    eps;
}

/// One for all lanes.
pub(crate) type ScalarRecipe = LaneRecipe<f64, Reasons>;

#[allow(clippy::float_cmp, reason = "flags")]
#[allow(clippy::inline_always, reason = "in loops that become vector instructions")]
impl ScalarRecipe {
    /// Whether `saturating` moves the learning rate.
    #[inline(always)]
    pub fn is_bent(&self) -> bool {
        (self.bends == 1.0) & !self.noise.is_nan()
    }

    /// The learning rate where the warmup starts, at k times the tuned batch.
    #[inline(always)]
    pub fn warmup_lr(&self, k: f64) -> f64 {
        let start = self.lr * (k - 1.0).min(1.0);
        if (self.linear == 1.0) & (k > 1.0) & !self.is_bent() { start } else { 0.0 }
    }
}

/// One for each lane.
pub(crate) type RecipePerLane = LaneRecipe<[f64; BLOCK], [Reasons; BLOCK]>;
