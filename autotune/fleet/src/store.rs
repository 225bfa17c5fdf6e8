//! The store of releases: a registry, or an object store with the same blobs and manifests as objects.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, ObjectStoreScheme, RetryConfig};
use tokio::time::timeout;
use url::Url;

use crate::digest::Digest;
use crate::error::FleetError;
use crate::location::Location;
use crate::manifest::Manifest;
use crate::registry::{Registry, Tagged};
use crate::wire::{Network, collect, unreachable};

/// A repository of releases.
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    /// For messages.
    base: Url,
}

#[derive(Debug)]
enum Kind {
    Registry(Registry),
    Objects(Arc<dyn ObjectStore>, Path),
}

impl Store {
    /// Opens a repository on the network of this machine. Credentials come from Docker's configuration for a registry,
    /// and from the usual variables for an object store.
    ///
    /// # Errors
    ///
    /// [`FleetError::Address`] and [`FleetError::Unreachable`]. No request is sent yet.
    pub fn open(location: &Location) -> Result<Self, FleetError> {
        Self::on(Network::system(location)?, location)
    }

    /// As [`Self::open`], on another network.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn on(network: Network, location: &Location) -> Result<Self, FleetError> {
        let base = &location.base;
        if let Some(is_plain) = location.registry() {
            let kind = Kind::Registry(Registry::new(network, base, is_plain)?);
            return Ok(Self { kind, base: base.clone() });
        }
        let invalid = |reason: String| FleetError::Address { url: location.to_string(), reason };
        let (scheme, path) =
            ObjectStoreScheme::parse(base).map_err(|error| invalid(error.to_string()))?;
        // The caller waits and tries again, with jitter.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        macro_rules! built {
            ($builder:expr) => {
                $builder
                    .with_url(base.as_str())
                    .with_retry(retry)
                    .with_http_connector(network)
                    .build()
                    .map(|store| -> Arc<dyn ObjectStore> { Arc::new(store) })
            };
        }
        let store: Result<Arc<dyn ObjectStore>, _> = match scheme {
            ObjectStoreScheme::Local => Ok(Arc::new(LocalFileSystem::new().with_fsync(true))),
            ObjectStoreScheme::AmazonS3 => built!(AmazonS3Builder::from_env()),
            ObjectStoreScheme::GoogleCloudStorage => built!(GoogleCloudStorageBuilder::from_env()),
            ObjectStoreScheme::MicrosoftAzure => built!(MicrosoftAzureBuilder::from_env()),
            _ => built!(HttpBuilder::new()),
        };
        let store = store.map_err(|error| invalid(error.to_string()))?;
        // The HTTP store has the whole URL as its root.
        let root = if scheme == ObjectStoreScheme::Http { Path::default() } else { path };
        Ok(Self { kind: Kind::Objects(store, root), base: base.clone() })
    }

    /// A step, if it takes no longer than `limit`. Its error has this store's address.
    pub(crate) async fn within<T>(
        &self,
        what: &'static str,
        limit: Duration,
        step: impl Future<Output = Result<T, FleetError>>,
    ) -> Result<T, FleetError> {
        let done = timeout(limit, step).await.unwrap_or(Err(FleetError::TooSlow { what, limit }));
        done.map_err(|error| error.at(&self.base))
    }

    /// The manifest of a tag, unless its ETag is still this one.
    pub(crate) async fn tagged(&self, tag: &str, etag: Option<&str>) -> Result<Tagged, FleetError> {
        match &self.kind {
            Kind::Registry(registry) => registry.tagged(tag, etag, MAX_MANIFEST_BYTES).await,
            Kind::Objects(store, root) => {
                let path = root.clone().join("tags").join(tag);
                let options =
                    GetOptions { if_none_match: etag.map(str::to_owned), ..GetOptions::default() };
                let found = match store.get_opts(&path, options).await {
                    Err(object_store::Error::NotModified { .. }) => return Ok(Tagged::NotModified),
                    found => found.map_err(failed(tag))?,
                };
                let etag = found.meta.e_tag.clone();
                let bytes = collect(tag, found.into_stream(), MAX_MANIFEST_BYTES).await?;
                Ok(Tagged::Bytes(bytes, etag))
            }
        }
    }

    /// A blob of this size, whose digest is checked.
    pub(crate) async fn blob(&self, digest: Digest, size: u64) -> Result<Vec<u8>, FleetError> {
        let bytes = match &self.kind {
            Kind::Registry(registry) => registry.blob(digest, size).await?,
            Kind::Objects(store, root) => {
                let found = store.get(&blob_path(root, digest)).await.map_err(failed(digest))?;
                collect(digest, found.into_stream(), size).await?
            }
        };
        let found = Digest::of(&bytes);
        if found == digest {
            Ok(bytes)
        } else {
            Err(FleetError::OtherBytes { expected: digest, found })
        }
    }

    /// Writes the blobs, then their manifest under each tag, in the order of the tags.
    pub(crate) async fn publish(
        &self,
        blobs: &BTreeMap<Digest, &[u8]>,
        manifest: &Manifest,
        tags: &[&str],
    ) -> Result<(), FleetError> {
        for (digest, bytes) in blobs {
            match &self.kind {
                Kind::Registry(registry) => registry.put_blob(*digest, bytes).await?,
                Kind::Objects(store, root) => {
                    let put = store.put(&blob_path(root, *digest), bytes.to_vec().into()).await;
                    put.map_err(failed(digest))?;
                }
            }
        }
        let manifest = manifest.to_json()?;
        for tag in tags {
            match &self.kind {
                Kind::Registry(registry) => registry.put_tag(tag, &manifest).await?,
                Kind::Objects(store, root) => {
                    let put = store
                        .put(&root.clone().join("tags").join(*tag), manifest.clone().into())
                        .await;
                    put.map_err(failed(tag))?;
                }
            }
        }
        Ok(())
    }

    /// The tags, sorted, within a minute.
    ///
    /// # Errors
    ///
    /// [`FleetError`].
    pub async fn tags(&self) -> Result<Vec<String>, FleetError> {
        self.within("the list of tags", LIST_LIMIT, self.tags_now()).await
    }

    async fn tags_now(&self) -> Result<Vec<String>, FleetError> {
        let mut tags = match &self.kind {
            Kind::Registry(registry) => registry.tags(MAX_LIST_BYTES).await?,
            Kind::Objects(store, root) => {
                let folder = root.clone().join("tags");
                let found: Vec<_> = store
                    .list(Some(&folder))
                    .take(MAX_TAGS)
                    .try_collect()
                    .await
                    .map_err(failed("list of tags"))?;
                found
                    .iter()
                    .filter_map(|object| object.location.filename().map(str::to_owned))
                    .collect()
            }
        };
        tags.sort();
        Ok(tags)
    }
}

fn blob_path(root: &Path, digest: Digest) -> Path {
    root.clone().join("blobs").join("sha256").join(digest.hex())
}

fn failed(what: impl core::fmt::Display) -> impl FnOnce(object_store::Error) -> FleetError {
    use object_store::Error;
    move |error| match error {
        Error::NotFound { .. } => FleetError::Missing { what: what.to_string(), tags: Vec::new() },
        Error::PermissionDenied { .. } => {
            FleetError::Denied { what: what.to_string(), status: 403 }
        }
        Error::Unauthenticated { .. } => FleetError::Denied { what: what.to_string(), status: 401 },
        error => unreachable(what, &error),
    }
}

const MAX_MANIFEST_BYTES: u64 = 256 << 10;
const LIST_LIMIT: Duration = Duration::from_secs(60);
/// In an object store.
const MAX_TAGS: usize = 100_000;
const MAX_LIST_BYTES: u64 = 4 << 20;
