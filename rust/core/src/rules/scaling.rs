//! How the learning rate follows the batch: one arm of [`lr_scale`] a rule.

use super::Optimizer;

macro_rules! rules {
    ($($variant:ident $name:literal $formula:literal $holds:literal $source:literal)*) => {
        /// A scaling rule. With k = new batch / tuned batch it turns η into η'.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule {
            $(#[doc = $formula] $variant,)*
        }

        impl Rule {
            /// Every rule, and what `isobatch explain --rules` prints of it.
            pub const ALL: &'static [Card] = &[$(
                Card { rule: Rule::$variant, name: $name, formula: $formula, holds: $holds, source: $source },
            )*];
        }
    };
}

/// A rule with its formula, range and source.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// The rule.
    pub rule: Rule,
    /// The name that users write.
    pub name: &'static str,
    /// η' in terms of η.
    pub formula: &'static str,
    /// When it was found to hold.
    pub holds: &'static str,
    /// Where.
    pub source: &'static str,
}

rules! {
    None "none" "η' = η" "the batch stays, or changes little" ""
    Linear "linear" "η' = kη"
        "SGD, up to the noise scale; it broke above 8192 images a step"
        "Goyal et al. 2017, arXiv 1706.02677, section 2.1"
    Sqrt "sqrt" "η' = √k·η"
        "the Adam family; not SGD below k = 1"
        "Granziol et al. 2020, arXiv 2006.09092; Malladi et al. 2022, arXiv 2205.10287; for SGD \
        Krizhevsky 2014, arXiv 1404.5997"
    Sde "sde" "η' = √k·η, β' = 1−k(1−β), ε' = ε/√k"
        "Adam and RMSprop while noise dominates; k(1−β) < 1"
        "Malladi et al. 2022, arXiv 2205.10287"
    SdeSmooth "sde_smooth" "η' = √k·η, β' = β^k, ε' = ε/√k"
        "like sde, but defined at every k; no paper derives it"
        "Malladi et al. 2022, arXiv 2205.10287, to first order"
    Adascale "adascale" "η' = rη, r = (σ²+μ²)/(σ²/k+μ²); a step counts as r"
        "SGD; σ² and μ² measured at the tuned batch"
        "Johnson et al. 2020, arXiv 2007.05105"
    Adamscale "adamscale" "η' = √r·η, r as in adascale; a step counts as r"
        "the Adam family; σ² and μ² measured at the tuned batch"
        "AdaptDL's AdamScale (petuum/adaptdl); no paper derives it"
    Saturating "saturating" "η' = η(1+Bn/B)/(1+Bn/B')"
        "SGD, in trials Lion and Muon too; noise scale Bn measured"
        "McCandlish et al. 2018, arXiv 1812.06162, eq. 2.6"
    Surge "surge" "η' = η·(√(Bn/B)+√(B/Bn))/(√(Bn/B')+√(B'/Bn))"
        "Adam-like; noise scale Bn measured"
        "Li et al. 2024, arXiv 2405.14578, eq. 13"
    Muon "muon" "η' = η·√((1+Bn/B)/(1+Bn/B'))"
        "Muon, only if chosen; noise scale Bn measured in Euclidean norms, not Muon's"
        "kexue.fm/archives/11285"
    Power "power" "η' = k^α·η"
        "α measured; LLM runs gave 0.29 to 1.0"
        "fits of MLPerf reference convergence points"
    Auto "auto"
        "SGD: linear; all others: sqrt; with a noise scale in the recipe SGD, Lion and Muon: saturating"
        "an assumption for Lion, Muon and Adafactor"
        "bench/results/science.md"
}

impl Rule {
    /// The rule that `auto` stands for. Where the noise scale is known, and the steps do not already shrink
    /// with the noise as Adam's do, it is the one that ends there: on each task it lost no more on average
    /// than SGD's other, and least of all for Muon and Lion (bench/results/science.md).
    pub(crate) fn resolve(self, optimizer: Optimizer, noise_is_known: bool) -> Rule {
        match (self, optimizer) {
            (Rule::Auto, Optimizer::Sgd | Optimizer::Lion | Optimizer::Muon) if noise_is_known => {
                Rule::Saturating
            }
            (Rule::Auto, Optimizer::Sgd) => Rule::Linear,
            (Rule::Auto, _) => Rule::Sqrt,
            (rule, _) => rule,
        }
    }

    /// Whether it holds the loss and not the samples: a step then counts for the gain of `adascale`.
    pub(crate) fn holds_loss(self) -> bool {
        matches!(self, Rule::Adascale | Rule::Adamscale)
    }

    /// Whether it moves the optimizer's averages beside the learning rate.
    pub(crate) fn moves_averages(self) -> bool {
        matches!(self, Rule::Sde | Rule::SdeSmooth)
    }

    /// Whether the optimizer is of the family that the rule was not made for.
    pub(crate) fn mismatches(self, optimizer: Optimizer) -> bool {
        match self {
            Rule::Linear => optimizer.adam_like(),
            Rule::Sqrt => optimizer == Optimizer::Sgd,
            Rule::Sde | Rule::SdeSmooth | Rule::Surge | Rule::Adamscale => !optimizer.adam_like(),
            Rule::Adascale => optimizer != Optimizer::Sgd,
            Rule::Saturating => !matches!(optimizer, Optimizer::Sgd | Optimizer::Lion | Optimizer::Muon),
            Rule::Muon => optimizer != Optimizer::Muon,
            Rule::None | Rule::Power | Rule::Auto => false,
        }
    }
}

/// The measured quantities that some rules need; NaN where they were not measured.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    /// The gradient noise scale in samples.
    pub scale: f64,
    /// The variance of the gradient at the tuned batch.
    pub sigma_sq: f64,
    /// The squared norm of the true gradient.
    pub mu_sq: f64,
    /// The exponent of the rule `power`.
    pub power: f64,
}

/// A rule for the batches within a ramp: one that moves the learning rate only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RampRule(pub Rule);

impl RampRule {
    /// All there are, by name: the other rules move the optimizer's averages too, or what a step counts for.
    pub(crate) fn all() -> impl Iterator<Item = (&'static str, RampRule)> {
        let alone = |card: &&Card| !card.rule.moves_averages() && !card.rule.holds_loss();
        Rule::ALL.iter().filter(alone).map(|card| (card.name, RampRule(card.rule)))
    }
}

/// η'/η when the batch goes from `from` to `to`; NaN where a measured quantity is missing. `rule` must be
/// resolved.
pub(crate) fn lr_scale(rule: Rule, from: f64, to: f64, noise: Noise) -> f64 {
    let k = to / from;
    match rule {
        Rule::None | Rule::Auto => 1.0,
        Rule::Linear => k,
        Rule::Sqrt | Rule::Sde | Rule::SdeSmooth => k.sqrt(),
        Rule::Adascale => (noise.sigma_sq + noise.mu_sq) / (noise.sigma_sq / k + noise.mu_sq),
        Rule::Adamscale => lr_scale(Rule::Adascale, from, to, noise).sqrt(),
        Rule::Saturating => (1.0 + noise.scale / from) / (1.0 + noise.scale / to),
        Rule::Muon => ((1.0 + noise.scale / from) / (1.0 + noise.scale / to)).sqrt(),
        // Its limit: from a noise scale of 0 on the learning rate falls with the root.
        Rule::Surge if noise.scale == 0.0 => k.sqrt().recip(),
        Rule::Surge => {
            let bend = |batch: f64| (noise.scale / batch).sqrt() + (batch / noise.scale).sqrt();
            bend(from) / bend(to)
        }
        Rule::Power => k.powf(noise.power),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOISE: Noise = Noise { scale: 1000.0, sigma_sq: 3.0, mu_sq: 1.0, power: 0.7 };

    #[test]
    fn no_rule_moves_at_the_tuned_batch() {
        for card in Rule::ALL {
            assert_eq!(Rule::ALL[card.rule as usize].name, card.name);
            assert!((lr_scale(card.rule, 256.0, 256.0, NOISE) - 1.0).abs() < 1e-15, "{}", card.name);
        }
    }
}
