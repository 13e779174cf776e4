//! A fake kernel.
