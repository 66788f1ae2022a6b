//! The report for a reader.

use std::fmt;

use super::{Report, Row, Stages};

impl fmt::Display for Report {
    /// A line per codec, and under it what the link was really like.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Row { nodes, params, link, repeats, .. }) = self.rows.first() {
            let over = link.as_ref().map_or("loopback", |link| &link.text);
            write!(f, "{nodes} ranks, {params} parameters, {over}, median of {repeats} steps, ms\n\n")?;
            write!(
                f,
                "  {:10}  {:>8}  {:>8}  {:>8}  {:>8}  {:>8}  {:>7}  {:>9}  {:>9}  step (fastest to slowest)",
                "codec",
                "encode",
                "exchange",
                "average",
                "optimize",
                "gather",
                "overlap",
                "sent MiB",
                "peak MiB"
            )?;
        }
        for row in &self.rows {
            write!(f, "\n  {row}")?;
        }
        for missing in &self.missing {
            write!(f, "\n  {:10}  {}", missing.codec, missing.why)?;
        }
        Ok(())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let peak = self.peak_rss_bytes.map_or_else(|| "-".into(), |peak| format!("{:.1}", mib(peak)));
        write!(f, "{:10}", self.codec)?;
        let Stages { encode, exchange, average, optimizer, gather, total, min, max } = self.seconds;
        for seconds in [encode, exchange, average, optimizer, gather] {
            write!(f, "  {:>8.1}", seconds * 1e3)?;
        }
        let sent = format!("{:.1}", mib(self.bytes.frames));
        let [total, min, max] = [total, min, max].map(|seconds| format!("{:.1}", seconds * 1e3));
        write!(f, "  {:>7.2}  {sent:>9}  {peak:>9}  {total} ({min} to {max})", self.overlap)?;
        if let Some(link) = &self.link {
            write!(f, "\n  {:10}  {link}", "")?;
        }
        Ok(())
    }
}
