//! Optimizers, and how their values follow the batch and the learning rate.

/// The optimizers whose scaling is known or assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimizer {
    /// Stochastic gradient descent, with or without momentum.
    Sgd,
    /// Adam, with L2 in the gradient.
    Adam,
    /// Adam with decoupled decay.
    AdamW,
    /// `RMSprop`; its alpha stands in `beta2`.
    RmsProp,
    /// Layer-wise adaptive SGD.
    Lars,
    /// Layer-wise adaptive Adam.
    Lamb,
    /// Sign momentum.
    Lion,
    /// Orthogonalised momentum.
    Muon,
    /// Factored second moments.
    Adafactor,
}

impl Optimizer {
    /// The names that users write, in the order of the variants.
    pub const ALL: [(&'static str, Optimizer); 9] = [
        ("sgd", Optimizer::Sgd),
        ("adam", Optimizer::Adam),
        ("adamw", Optimizer::AdamW),
        ("rmsprop", Optimizer::RmsProp),
        ("lars", Optimizer::Lars),
        ("lamb", Optimizer::Lamb),
        ("lion", Optimizer::Lion),
        ("muon", Optimizer::Muon),
        ("adafactor", Optimizer::Adafactor),
    ];

    /// The name without what other libraries put around it: `torch.optim.AdamW`, `adamw_torch_fused`,
    /// `paged_adamw_8bit` and `AdamW8bit` are all adamw, wherever their numbers are kept or computed. What
    /// changes the algorithm (`galore_adamw`) stays.
    pub(crate) fn plain_name(text: &str) -> String {
        const BEHIND: [&str; 10] =
            ["8bit", "32bit", "4bit", "torch", "fused", "bnb", "hf", "apex", "xla", "npu"];
        let lower = text.to_lowercase();
        let name = lower.rsplit('.').next().unwrap_or(&lower);
        let mut name = name.strip_prefix("paged").map_or(name, |rest| rest.trim_start_matches('_'));
        while let Some(rest) = BEHIND.iter().find_map(|word| name.strip_suffix(word)) {
            name = rest.trim_end_matches('_');
        }
        name.to_owned()
    }

    /// Adam's family, for which the square-root rules were derived.
    pub(crate) fn adam_like(self) -> bool {
        matches!(self, Optimizer::Adam | Optimizer::AdamW | Optimizer::RmsProp | Optimizer::Lamb)
    }

    /// Layer-wise trust ratios: the warmup then keeps its steps (LEGW).
    pub(crate) fn layer_wise(self) -> bool {
        matches!(self, Optimizer::Lars | Optimizer::Lamb)
    }

    /// Whether any scaling rule of the learning rate is more than an assumption here.
    pub(crate) fn charted(self) -> bool {
        !matches!(self, Optimizer::Lion | Optimizer::Muon | Optimizer::Adafactor)
    }

    /// Bytes of float32 state that it keeps for each parameter, whatever the precision of the step. Adafactor
    /// keeps a row's and a column's average of each matrix and no first moment: 4·(r + c) bytes for r·c
    /// parameters, here those of a square matrix of 1,024, since the shapes are not known. Vectors, which it
    /// does not factor, are few.
    #[must_use]
    pub fn state_bytes(self) -> f64 {
        match self {
            Optimizer::Adam | Optimizer::AdamW | Optimizer::Lamb => 8.0,
            Optimizer::Sgd | Optimizer::RmsProp | Optimizer::Lars | Optimizer::Lion | Optimizer::Muon => 4.0,
            Optimizer::Adafactor => 4.0 * 2.0 / 1024.0,
        }
    }

    /// (beta1, beta2, eps) where a recipe names none: torch's defaults, and the papers' for LAMB and Lion.
    pub(crate) fn defaults(self) -> Moments {
        let (beta1, beta2, eps) = match self {
            Optimizer::Adam | Optimizer::AdamW => (0.9, 0.999, 1e-8),
            Optimizer::Lamb => (0.9, 0.999, 1e-6),
            Optimizer::Lion => (0.9, 0.99, f64::NAN),
            Optimizer::RmsProp => (f64::NAN, 0.99, 1e-8),
            _ => (f64::NAN, f64::NAN, f64::NAN),
        };
        Moments { beta1, beta2, eps }
    }
}

/// How weight decay meets the learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// `θ ← θ − ηλθ`, as torch's `AdamW`.
    LrMultiplied,
    /// `θ ← θ − λθ`, as in the `AdamW` paper.
    Independent,
    /// Muon's, which moves by the root of the batch as nanochat has it (karpathy/nanochat,
    /// `scripts/base_train.py`).
    Sqrt,
}

impl Decay {
    /// The names that users write, in the order of the variants.
    pub const ALL: [(&'static str, Decay); 3] =
        [("lr_multiplied", Decay::LrMultiplied), ("independent", Decay::Independent), ("sqrt", Decay::Sqrt)];
}

/// The running averages' constants; NaN where the optimizer has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// Of the first moment.
    pub beta1: f64,
    /// Of the second.
    pub beta2: f64,
    /// Added to the root of the second.
    pub eps: f64,
}

impl Moments {
    /// The `sde` rule: β' = 1 − k(1−β), ε' = ε/√k (Malladi 2022). A β may come out at or below zero; one that
    /// is zero averages nothing, at any batch, and stays.
    pub(crate) fn sde(self, k: f64) -> Moments {
        let beta = |b: f64| if b == 0.0 { 0.0 } else { 1.0 - k * (1.0 - b) };
        Moments { beta1: beta(self.beta1), beta2: beta(self.beta2), eps: self.eps / k.sqrt() }
    }

    /// The `sde_smooth` rule: β' = β^k, ε' = ε/√k. It is 1 − k(1−β) to first order in 1−β, and stays between
    /// 0 and 1.
    pub(crate) fn sde_smooth(self, k: f64) -> Moments {
        Moments { beta1: self.beta1.powf(k), beta2: self.beta2.powf(k), eps: self.eps / k.sqrt() }
    }

    /// With a floor under the second β, which never lifts it above `tuned`'s.
    pub(crate) fn floored(self, tuned: Moments, floor: f64) -> Moments {
        let lifted = self.beta2.max(floor.min(tuned.beta2));
        // Of an optimizer that has none it stays unknown.
        Moments { beta2: if self.beta2 < tuned.beta2 { lifted } else { self.beta2 }, ..self }
    }

    /// The second moment's half-life held in samples: β2' = β2^k (Marek 2025, arXiv 2507.07101).
    pub(crate) fn half_life(self, k: f64) -> Moments {
        Moments { beta2: self.beta2.powf(k), ..self }
    }
}

/// The decay that holds `AdamW`'s timescale 1/(ηλ) in epochs, when the batch moves by `k`, the learning rate
/// by `lr_scale` and the samples of the run by `stretch` (Wang & Aitchison 2024, arXiv 2405.13698); or
/// Muon's, λ' = λ·√k / stretch.
pub(crate) fn decay(weight_decay: f64, semantics: Decay, k: f64, lr_scale: f64, stretch: f64) -> f64 {
    match semantics {
        Decay::LrMultiplied => weight_decay * (k / lr_scale / stretch),
        Decay::Independent => weight_decay * (k / stretch),
        Decay::Sqrt => weight_decay * (k.sqrt() / stretch),
    }
}
