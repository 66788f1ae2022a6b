//! What all ranks must have the same, compared while they join.

use gradwire::optim;
use gradwire::transport::quic::Agreement;

use crate::args::{CodecName, Job, OptimizerName, ScaleArg, name_of};
use crate::task::Task;

/// What makes runs different: if two ranks differ in one of these, neither trains what its user asked for.
///
/// The first difference is reported: what explains others comes first. Values are words, for whoever reads that.
pub(crate) fn all(job: &Job, codec: CodecName, task: &dyn Task) -> Vec<Agreement> {
    vec![
        Agreement::new("task", name_of(job.task)),
        Agreement::new("model layout", blake3::Hash::from(task.layout().hash()).to_hex().as_str()),
        Agreement::new("data", task.data()),
        Agreement::new("codec", codec_in_words(codec, job.scale)),
        Agreement::new("optimizer", optimizer_in_words(job.optimizer_name, &job.optimizer)),
        Agreement::new("peak learning rate", job.learning_rate.to_string()),
        Agreement::new("number of steps", job.steps.to_string()),
        // Each rank finds its part of the data by the others' sizes.
        Agreement::new("samples per rank and step", job.batch.to_string()),
        Agreement::new("seed", job.seed.to_string()),
    ]
}

/// f32 has no scale: two ranks that were told different ones still do the same.
fn codec_in_words(codec: CodecName, scale: ScaleArg) -> String {
    let name = name_of(codec);
    match (codec, scale) {
        (CodecName::F32, _) => name,
        (CodecName::Loco, ScaleArg::Auto) => format!("{name} with automatic scale"),
        (CodecName::Loco, ScaleArg::Log2(log2)) => format!("{name} with scale 2^{log2}"),
    }
}

fn optimizer_in_words(name: OptimizerName, optimizer: &optim::Config) -> String {
    let name = name_of(name);
    match optimizer {
        optim::Config::AdamW(adam) => format!(
            "{name} with beta1 {}, beta2 {}, epsilon {:e}, weight decay {}",
            adam.beta1, adam.beta2, adam.epsilon, adam.weight_decay
        ),
        optim::Config::Sgd(sgd) => {
            format!("{name} with momentum {}, weight decay {}", sgd.momentum, sgd.weight_decay)
        }
        // Of one that is newer than this function, the settings are still compared before the first step.
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_codec_is_what_it_does_and_nothing_else() {
        let words = |codec, scale| codec_in_words(codec, scale);
        assert_eq!(words(CodecName::F32, ScaleArg::Log2(3)), words(CodecName::F32, ScaleArg::Auto));
        assert_eq!(words(CodecName::Loco, ScaleArg::Auto), "loco with automatic scale");
        assert_eq!(words(CodecName::Loco, ScaleArg::Log2(-3)), "loco with scale 2^-3");
    }

    #[test]
    fn an_optimizer_is_told_with_every_parameter() {
        let sgd = optim::Sgd { momentum: 0.9, weight_decay: 0.01 };
        assert_eq!(
            optimizer_in_words(OptimizerName::Sgd, &optim::Config::Sgd(sgd)),
            "sgd with momentum 0.9, weight decay 0.01"
        );
        let adam = optim::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
        assert_eq!(
            optimizer_in_words(OptimizerName::Adamw, &optim::Config::AdamW(adam)),
            "adamw with beta1 0.9, beta2 0.999, epsilon 1e-8, weight decay 0.01"
        );
    }
}
