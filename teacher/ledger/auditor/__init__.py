"""Recompute a certificate from a ledger file alone. These rules are checked entry by entry:

- **The file**: plain tables of exact types, one head, one chain, no other tables, at most 16 GiB.
- **An entry's text**: canonical JSON, so no repeated key, no NaN, no infinity; exactly its kind's
  fields; exact types and ranges.
- **The first entry**: one, and first; of this format, with an adversary that has certificates.
- **An extractor**: its hash is that of its fields, which stand in the table ``extractors`` once;
  none is missing, changed or unnamed; one is named before the first charge.
- **The plan**: each mechanism is known, the fields that decide a price or a result are in range,
  and the releases priced are those restated from them.
- **A charge**: for a planned release, within its cap; 1 where one charge pays for a batch or for
  all.
- **A release**: of an open charge, for as many queries as it paid for; no query twice, none that
  was refused; a second stage only after a screening's 1; a query stays with one mechanism.
- **A result**: a bit; a class, from 0 to 2^31 - 1; the middle of a cell; a noisy count within what
  10^12 records or all voters add up to and 14 deviations (which noise leaves with a probability
  below 2^-140); of sums, one length for an extractor, one more than (features + 1) times classes;
  of a batch, bounds from 1 to the batch's size and the radius that the fields give;
  one number of classes throughout.
- **A refusal**: where the cap is reached, of queries that were due.
"""
