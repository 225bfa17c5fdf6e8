//! What several tests share.
