//! The report for a reader.

use std::fmt;

use super::{Report, Row};
use crate::args::name_of;

impl fmt::Display for Report {
    /// A line per way, and under it what the link was really like.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Row { nodes, bytes_per_pair, link, repeats, .. }) = self.rows.first() {
            let mib = *bytes_per_pair as f64 / f64::from(1 << 20);
            let over = link.as_ref().map_or("loopback", |link| &link.text);
            write!(f, "{nodes} ranks, {mib:.3} MiB per pair, {over}, median of {repeats} repeats\n\n")?;
            write!(
                f,
                "  {:10}  {:>7}  {:>8}  {:>7}  {:>8}  {:>7}  {:>6}  {:>9}  seconds (fastest to slowest)",
                "congestion", "GB/s", "CPU s/GB", "of link", "2nd half", "steady", "again", "peak MiB"
            )?;
        }
        for row in &self.rows {
            write!(f, "\n  {row}")?;
        }
        for missing in &self.missing {
            write!(f, "\n  {:10}  {}", name_of(missing.congestion), missing.why)?;
        }
        if let Some(tcp) = &self.tcp {
            write!(f, "\n  {tcp}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let cpu = or_dash(self.cpu_s_per_gb.map(|cpu| format!("{cpu:.2}")));
        let share = |share: Option<f64>| or_dash(share.map(|share| format!("{:.1} %", share * 100.0)));
        let [whole, half, steady] =
            [self.goodput_over_link, self.second_half_over_link, self.steady_over_link].map(share);
        let peak =
            or_dash(self.peak_rss_bytes.map(|peak| format!("{:.1}", peak as f64 / f64::from(1 << 20))));
        let again = format!("{:.2} %", self.retransmitted_share * 100.0);
        let Self { gb_per_s, seconds, min, max, .. } = self;
        write!(
            f,
            "{:10}  {gb_per_s:>7.3}  {cpu:>8}  {whole:>7}  {half:>8}  {steady:>7}  {again:>6}  {peak:>9}  {seconds:.3} ({min:.3} to {max:.3})",
            name_of(self.congestion)
        )?;
        if let Some(link) = &self.link {
            write!(f, "\n  {:10}  {link}", "")?;
        }
        Ok(())
    }
}
