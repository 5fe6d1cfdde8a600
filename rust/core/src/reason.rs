//! Why a row is not simply `ok`: one bit each, with its text and source.

use std::ops::{BitOr, Not};

/// How much a [`Reason`] weighs on its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// There is a plan; the reader should know this.
    Caution,
    /// There is no plan.
    Infeasible,
}

macro_rules! reasons {
    ($($variant:ident $name:literal $severity:ident $text:literal $source:literal)*) => {
        /// A caution or an infeasibility. The discriminant is its bit in [`Reasons`], of which there are 64.
        #[allow(clippy::doc_markdown, reason = "the texts are shown to people as they are")]
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

            /// The sentence for people.
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
        "effective_batch, gpus, ramp or another count of the recipe is missing, out of range or contradicts \
        the others" ""
    InvalidLr "invalid_lr" Infeasible
        "lr, min_lr, power, noise_scale, sigma_sq or mu_sq is missing or out of range" ""
    InvalidOptimizer "invalid_optimizer" Infeasible
        "the optimizer, one of its values, ema_decay, precision or another value of the step is out of \
        range" ""
    InvalidLength "invalid_length" Infeasible
        "duration, warmup, schedule, dataset_size, seq_len, drop_last or convention is missing or out of \
        range" ""
    InvalidCluster "invalid_cluster" Infeasible
        "nodes, gpus_per_node or another value of the cluster is missing or out of range" ""
    InvalidSetting "invalid_setting" Infeasible
        "policy, rule, a cap or another setting is out of range" ""
    TooLarge "too_large" Infeasible
        "a result is too large for its column" ""
    NotDivisible "not_divisible" Infeasible
        "the effective batch cannot be split evenly over the replicas: change the GPU count or the batch, or \
        set batch_tolerance or split=\"ragged\"" ""
    MultipleUnmet "multiple_unmet" Infeasible
        "no micro-batch up to the cap is a multiple of micro_batch_multiple" ""
    ModelParallel "model_parallel" Infeasible
        "the GPU count is not a multiple of model_parallel" ""
    ExpertParallel "expert_parallel" Infeasible
        "the GPU count is not a multiple of expert_parallel" ""
    AboveMaxBatch "above_max_batch" Infeasible
        "the effective batch is above max_batch" ""
    AboveMemory "above_memory" Infeasible
        "not even one sample fits in the GPU's memory" ""
    BatchAboveDataset "batch_above_dataset" Infeasible
        "the dataset has fewer samples than one effective batch" ""
    RunBelowStep "run_below_step" Infeasible
        "the run ends before the first optimizer step" ""
    BetaNotPositive "beta_not_positive" Infeasible
        "the sde rule would make a beta zero or negative: it needs k(1-beta) < 1"
        "Malladi et al. 2022, arXiv 2205.10287"
    NeedsTunedGpus "needs_tuned_gpus" Infeasible
        "policy grow needs the GPU count of the tuned run (gpus), or max_micro_batch" ""
    NeedsNoise "needs_noise" Infeasible
        "the gradient noise is not known: adascale and adamscale need sigma_sq and mu_sq; saturating, surge, \
        muon and policy goodput need noise_scale" ""
    NeedsPower "needs_power" Infeasible
        "rule power needs a measured exponent: set power of the recipe" ""
    RampNotDivisible "ramp_not_divisible" Infeasible
        "a batch of the ramp cannot be split into whole micro-batches over the replicas" ""
    NeedsProfile "needs_profile" Infeasible
        "policy goodput, deadline_hours, budget and select need a profile of this workload on this GPU type \
        (isobatch calibrate), and the links in use, from it or from the cluster (inter_gb_s, intra_gb_s)" ""
    MissesDeadline "misses_deadline" Infeasible
        "the run takes longer than deadline_hours" ""
    AboveBudget "above_budget" Infeasible
        "the run costs more than budget" ""
    BatchMoved "batch_moved" Caution
        "batch size changed so that it divides evenly (batch_tolerance, split=\"smaller\"); under \
        policy=\"keep\" the learning rate is not rescaled" ""
    Ragged "ragged" Caution
        "the micro-batches of a step differ in size: weight the mean loss of each by plan.loss_weights(rank)"
        ""
    UnequalDevices "unequal_devices" Caution
        "the recipe was tuned on devices with unequal batches, so its mean loss needed weights"
        "pytorch/pytorch#67253"
    MicroBatchShrunk "micro_batch_shrunk" Caution
        "the micro-batch is at most half the tuned one; GPU utilization may drop" ""
    CoupledMoved "coupled_moved" Caution
        "samples of a micro-batch affect each other (batch_norm, coupled), and its size differs from the \
        tuned one: this is not the same training"
        "for batch norm: Goyal et al. 2017, arXiv 1706.02677, section 2.3"
    AboveCriticalBatch "above_critical_batch" Caution
        "the batch is above the critical batch (the simple noise scale), so the same loss takes more samples"
        "McCandlish et al. 2018, arXiv 1812.06162"
    LargeGrowth "large_growth" Caution
        "the batch grew more than 8 times and no noise scale is known"
        "McCandlish et al. 2018, arXiv 1812.06162"
    RuleMismatch "rule_mismatch" Caution
        "this rule is not the usual one for this optimizer: linear for SGD, sqrt for the Adam family"
        "Goyal et al. 2017, arXiv 1706.02677; Malladi et al. 2022, arXiv 2205.10287"
    RuleRange "rule_range" Caution
        "the rule is used outside the range in which it was tested" ""
    RuleAssumed "rule_assumed" Caution
        "how the learning rate follows the batch is an assumption for this optimizer" ""
    SqrtScaleRange "sqrt_scale_range" Caution
        "sqrt scaling was seen to hold only from 1/8 to 4 times the tuned batch"
        "Complete(d)P, arXiv 2512.22382, by a secondary account; bench/results/science.md"
    Beta1Low "beta1_low" Caution
        "the sde rule brings beta1 below 0.5" "Malladi et al. 2022, arXiv 2205.10287"
    DecayUnknown "decay_unknown" Caution
        "set decay=\"lr_multiplied\" (torch AdamW) or \"independent\"; assumed lr_multiplied"
        "Wang & Aitchison 2024, arXiv 2405.13698"
    NoWarmup "no_warmup" Caution
        "the batch grew but the recipe has no warmup; consider adding one (warmup=5%)"
        "Goyal et al. 2017, arXiv 1706.02677, table 2"
    WarmupLong "warmup_long" Caution
        "the warmup takes more than a fifth of the steps" ""
    WarmupShort "warmup_short" Caution
        "the warmup is shorter than 1/(1-beta2) steps" "Ma & Yarats 2019, arXiv 1910.04209"
    WarmupPastEnd "warmup_past_end" Caution
        "the run ends before the warmup does" ""
    Padded "padded" Caution
        "more than 1 % of an epoch's samples are repeated as padding" ""
    Dropped "dropped" Caution
        "more than 1 % of the samples are dropped in each epoch" ""
    UnevenTail "uneven_tail" Caution
        "the last step of each epoch is smaller; averaging per-micro-batch means over-weights its samples \
        (drop_last=true leaves it out)"
        "Lightning-AI/pytorch-lightning#19987"
    MemoryEstimated "memory_estimated" Caution
        "memory was estimated from parameters, optimizer and precision, not measured" ""
    OutsideMeasured "outside_measured" Caution
        "the forecast, or its all-reduce, is outside what the profile measured: its range may be too narrow"
        ""
    ForecastEstimated "forecast_estimated" Caution
        "the profile has estimates, not measurements" ""
    OtherHardware "other_hardware" Caution
        "time and cost are not known: the profile is of another GPU type, model or sequence length \
        (parameters, seq_len), or lacks a link in use (set the cluster's inter_gb_s, intra_gb_s)" ""
    Uneven "uneven" Caution
        "the first replicas take one more micro-batch: weight each rank's loss by plan.loss_weights(rank)" ""
    LimitLikely "limit_likely" Caution
        "deadline_hours or budget is likely met, not surely: the forecast's range ends above it" ""
    AccumulationUnmet "accumulation_unmet" Infeasible
        "no split has an accumulation that is a multiple of accumulation_multiple" ""
    RampRule "ramp_rule" Caution
        "the learning rate follows the batch in the ramp: tried only as √2 for each doubling (OLMo-core)"
        "Merrill et al. 2025, arXiv 2505.23971"
    MicroBatchUnmet "micro_batch_unmet" Infeasible
        "no split has a micro-batch of at least min_micro_batch and at most max_micro_batch" ""
    LoraGrowth "lora_growth" Caution
        "the batch grew, and LoRA suffers from large batches earlier than full fine-tuning, at any rank; \
        published runs at 2 to 16 times the batch used 1.4 to 2 times less than √k"
        "Schulman & Thinking Machines Lab 2025, LoRA Without Regret; MLPerf Training 6.1"
    ShortEpochs "short_epochs" Caution
        "the dataset has fewer samples than a batch: each epoch is one step, on fewer samples than the \
        learning rate was tuned for" ""
    ScheduleUnmet "schedule_unmet" Infeasible
        "the schedule does not fit this run: the decay, rise or until has no room beside the warmup, or a \
        warmup, min_lr, dataset_size or seq_len is missing" ""
    Beta2Low "beta2_low" Caution
        "beta2 fell below 0.9, where loss spikes were seen; beta2_rule=\"half_life:0.9\" or \"auto:0.9\" \
        sets a floor" "marin-community/marin#2447"
    DurationMoved "duration_moved" Caution
        "the run's length differs from the tuned one (duration_scale): published laws disagree on how the \
        learning rate follows (isobatch estimate --laws); only a power, as in 8^0.3, applies one" ""
    MuonDecay "muon_decay" Caution
        "Muon's weight decay follows the batch as in karpathy/nanochat; no paper derives it" ""
    SgdScaleUp "sgd_scale_up" Caution
        "SGD's learning rate more than doubles: that held on ResNet-50 and diverged in small networks from k \
        = 4 on; watch the first steps, or run isobatch probe"
        "Goyal et al. 2017, arXiv 1706.02677, table 2(a); bench/results/science.md"
    InvalidId "invalid_id" Infeasible
        "job is empty: each row needs an id" ""
    NotCompared "not_compared" Caution
        "select left out rows of this job with an unknown time, cost or noise scale: this row is the best of \
        the rest or, without any, the first that can be planned" ""
    NeedsPrice "needs_price" Infeasible
        "budget needs a price: set price_per_gpu_hour of the cluster" ""
    NeedsDuration "needs_duration" Infeasible
        "deadline_hours and budget need the run's length: set duration of the recipe (duration=90ep)" ""
    MicroBatchOpen "micro_batch_open" Caution
        "the micro-batch is larger than the tuned one, and nothing caps it, as the GPU's memory is not \
        known: set max_micro_batch, or micro_batch of the recipe" ""
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

    fn bitor(self, reasons: Reasons) -> Reasons {
        Reasons(self.0 | reasons.0)
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

    /// The reasons in both sets.
    #[must_use]
    pub(crate) fn of(self, reasons: Reasons) -> Reasons {
        Reasons(self.0 & reasons.0)
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

    /// The verdict of the bits.
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
