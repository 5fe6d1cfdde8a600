//! Why a row is not simply `ok`: one bit each, with its text and source.

use std::ops::{BitOr, Not};

/// How much a [`Reason`] weighs on its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The plan stands; the reader should know this.
    Caution,
    /// There is no plan.
    Infeasible,
}

macro_rules! reasons {
    ($($variant:ident $name:literal $severity:ident $text:literal $source:literal)*) => {
        /// A caution or an infeasibility. The discriminant is its bit in [`Reasons`]: append, never reorder.
        #[allow(clippy::doc_markdown, reason = "the texts are shown to people as they stand")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Reason {
            $(#[doc = $text] $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of their bits.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant,)*];

            /// The name that programs see.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Reason::$variant => $name,)* }
            }

            /// What people read.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self { $(Reason::$variant => $text,)* }
            }

            /// Where the limit comes from; empty where it is arithmetic alone.
            #[must_use]
            pub fn source(self) -> &'static str {
                match self { $(Reason::$variant => $source,)* }
            }

            /// Whether there is a plan at all.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Reason::$variant => Severity::$severity,)* }
            }
        }
    };
}

reasons! {
    InvalidBatch "invalid_batch" Infeasible
        "a count of the recipe (effective_batch, gpus, micro_batch, accumulation, model_parallel or ramp) is missing, contradictory or outside its legal values" ""
    InvalidLr "invalid_lr" Infeasible
        "lr, min_lr or power is missing or outside its legal values" ""
    InvalidOptimizer "invalid_optimizer" Infeasible
        "optimizer, momentum, betas, eps, weight_decay, decay or ema_decay is outside its legal values" ""
    InvalidLength "invalid_length" Infeasible
        "duration, warmup, schedule, dataset_size, seq_len, drop_last or convention is missing or outside its legal values" ""
    InvalidNoise "invalid_noise" Infeasible
        "noise_scale, sigma_sq or mu_sq is outside its legal values" ""
    InvalidCluster "invalid_cluster" Infeasible
        "nodes, gpus_per_node, model_parallel or another value of the cluster is missing or outside its legal values" ""
    InvalidSetting "invalid_setting" Infeasible
        "policy, rule, a cap or another setting is outside its legal values" ""
    TooLarge "too_large" Infeasible
        "a count of the result passes what its column can hold" ""
    NotDivisible "not_divisible" Infeasible
        "the effective batch does not divide over the replicas: see nearest_world_size and nearest_batch, or allow batch_tolerance or ragged" ""
    MultipleUnmet "multiple_unmet" Infeasible
        "no micro-batch under the cap is a multiple of the required micro_batch_multiple" ""
    ModelParallel "model_parallel" Infeasible
        "model_parallel does not divide the GPUs" ""
    AboveMaxBatch "above_max_batch" Infeasible
        "the effective batch is above max_batch" ""
    AboveMemory "above_memory" Infeasible
        "not even a micro-batch of one fits in the GPU's memory" ""
    BatchAboveDataset "batch_above_dataset" Infeasible
        "an epoch holds less than one effective batch" ""
    RunBelowStep "run_below_step" Infeasible
        "the duration ends before the first optimizer step" ""
    BetaNotPositive "beta_not_positive" Infeasible
        "the sde rule needs k(1-beta) < 1 for both betas" "Malladi et al. 2022, arXiv 2205.10287"
    NeedsTunedGpus "needs_tuned_gpus" Infeasible
        "policy grow needs the GPU count that the recipe was tuned on, or max_micro_batch" ""
    NeedsNoise "needs_noise" Infeasible
        "the rule needs the measured gradient noise: sigma_sq and mu_sq for adascale, noise_scale for saturating and surge, and for policy goodput" ""
    NeedsPower "needs_power" Infeasible
        "the rule power needs the measured exponent in power" ""
    RampNotDivisible "ramp_not_divisible" Infeasible
        "a batch of the ramp does not divide over micro-batch and replicas, or the ramp does not reach the effective batch in whole increments" ""
    NeedsProfile "needs_profile" Infeasible
        "policy goodput and a choice by time or cost need a profile of this workload on this GPU type" ""
    MissesDeadline "misses_deadline" Infeasible
        "the run takes longer than deadline_hours" ""
    AboveBudget "above_budget" Infeasible
        "the run costs more than budget" ""
    BatchMoved "batch_moved" Caution
        "the batch moved within batch_tolerance; under keep the learning rate stayed" ""
    Ragged "ragged" Caution
        "the micro-batches of a step differ in size: weight each one's mean loss by plan.loss_weights(rank)" ""
    UnequalDevices "unequal_devices" Caution
        "the recipe was tuned on devices with unequal batches: its mean loss needed weights" "pytorch/pytorch#67253"
    MultipleMissed "multiple_missed" Caution
        "the micro-batch is not a multiple of micro_batch_multiple" ""
    MicroBatchShrunk "micro_batch_shrunk" Caution
        "the micro-batch is half the tuned one or less: the GPUs may be poorly used" ""
    BatchNormMoved "batch_norm_moved" Caution
        "batch norm sees another per-replica batch than the tuned one" "Goyal et al. 2017, arXiv 1706.02677, section 2.3"
    AboveCriticalBatch "above_critical_batch" Caution
        "the batch is above the critical batch, here the simple noise scale tr(Sigma)/|G|^2: more samples for the same loss" "McCandlish et al. 2018, arXiv 1812.06162"
    LargeGrowth "large_growth" Caution
        "the batch grew more than 8 times and no noise scale is known" "McCandlish et al. 2018, arXiv 1812.06162"
    RuleMismatch "rule_mismatch" Caution
        "this rule is not the one known for this optimizer: linear for SGD, sqrt for the Adam family" "Goyal et al. 2017, arXiv 1706.02677; Malladi et al. 2022, arXiv 2205.10287"
    RuleRange "rule_range" Caution
        "the rule is outside the range in which it was found to hold" ""
    RuleAssumed "rule_assumed" Caution
        "sqrt is an assumption for this optimizer" ""
    SqrtScaleDown "sqrt_scale_down" Caution
        "sqrt scaling down below 1/8 of the tuned batch" ""
    Beta1Low "beta1_low" Caution
        "the sde rule brings beta1 below 0.5" "Malladi et al. 2022, arXiv 2205.10287"
    DecayUnknown "decay_unknown" Caution
        "how this optimizer multiplies its weight decay was not said (decay = lr_multiplied or independent)" "Wang & Aitchison 2024, arXiv 2405.13698"
    NoWarmup "no_warmup" Caution
        "the batch grew and the recipe has no warmup; no rule invents one" "Goyal et al. 2017, arXiv 1706.02677, table 2"
    WarmupLong "warmup_long" Caution
        "the warmup takes more than a fifth of the steps" ""
    WarmupShort "warmup_short" Caution
        "the warmup is shorter than 1/(1-beta2) steps" "Ma & Yarats 2019, arXiv 1910.04209"
    WarmupPastEnd "warmup_past_end" Caution
        "the run ends before the warmup does" ""
    Padded "padded" Caution
        "more than 1 % of an epoch's samples are served twice, as padding" ""
    Dropped "dropped" Caution
        "more than 1 % of the samples are dropped in each epoch" ""
    UnevenTail "uneven_tail" Caution
        "the last step of an epoch holds fewer samples: a mean of micro-batch means then weighs them wrongly" "Lightning-AI/pytorch-lightning#19987"
    MemoryEstimated "memory_estimated" Caution
        "memory was estimated from parameters, optimizer and precision, not measured" ""
    OutsideMeasured "outside_measured" Caution
        "the forecast lies outside the range that the profile measured" ""
    ForecastEstimated "forecast_estimated" Caution
        "the profile holds estimates, not measurements" ""
    OtherHardware "other_hardware" Caution
        "no profile was measured on this cluster's GPU type: nothing is forecast" ""
    Uneven "uneven" Caution
        "the first replicas take one more micro-batch: weight each rank's loss by plan.loss_weights(rank)" ""
    AllReduceFitted "all_reduce_fitted" Caution
        "the all-reduce lies outside the profile's table of measured ones: it is forecast by the fitted latency and bandwidth" ""
}

/// A set of [`Reason`]s, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reasons(u64);

impl Reason {
    /// The set of this one.
    pub(crate) const fn alone(self) -> Reasons {
        Reasons(1 << self as u8)
    }
}

impl BitOr for Reasons {
    type Output = Reasons;

    fn bitor(self, other: Reasons) -> Reasons {
        Reasons(self.0 | other.0)
    }
}

impl Not for Reasons {
    type Output = Reasons;

    fn not(self) -> Reasons {
        Reasons(!self.0)
    }
}

const INFEASIBLE: u64 = {
    let mut mask = 0;
    let mut i = 0;
    while i < Reason::ALL.len() {
        if matches!(Reason::ALL[i].severity(), Severity::Infeasible) {
            mask |= 1 << i;
        }
        i += 1;
    }
    mask
};

impl Reasons {
    /// Adds one.
    pub fn insert(&mut self, reason: Reason) {
        self.0 |= 1 << reason as u8;
    }

    /// Adds one where the condition holds: no branch.
    pub fn insert_if(&mut self, condition: bool, reason: Reason) {
        self.0 |= u64::from(condition) << reason as u8;
    }

    /// Those that are in the other set too.
    #[must_use]
    pub(crate) fn of(self, other: Reasons) -> Reasons {
        Reasons(self.0 & other.0)
    }

    /// Whether it is in the set.
    #[must_use]
    pub fn contains(self, reason: Reason) -> bool {
        self.0 >> reason as u8 & 1 == 1
    }

    /// The bits, as columns hold them.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// What the bits say of the plan.
    #[must_use]
    pub fn status(self) -> Status {
        match self.0 {
            0 => Status::Ok,
            bits if bits & INFEASIBLE == 0 => Status::Caution,
            _ => Status::Infeasible,
        }
    }
}

/// The one-word verdict on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Nothing to say.
    Ok,
    /// A plan, and something to know.
    Caution,
    /// No plan.
    Infeasible,
}

impl Status {
    /// The names, in the order of their codes.
    pub const NAMES: [&'static str; 3] = ["ok", "caution", "infeasible"];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_a_bit_for_every_reason() {
        assert!(Reason::ALL.len() <= 64);
        for (bit, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, bit);
            let mut set = Reasons::default();
            set.insert(*reason);
            assert!(set.contains(*reason));
            assert_eq!(set.status() == Status::Infeasible, reason.severity() == Severity::Infeasible);
        }
    }
}
