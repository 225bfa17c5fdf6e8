//! The weights of a block out of a safetensors file, with the names that diffusers uses.

use std::collections::HashSet;

use half::{bf16, f16};
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::shape::BlockShape;
use super::weights::{BLOCK_TENSORS, BlockWeights, POSITIONS, WeightTensor};
use crate::element::{Element, to_u64, to_usize};
use crate::error::KernelError;

/// A safetensors file of motion modules, such as one of diffusers.
///
/// The tensors of a block have names like `PREFIX.attn1.to_q.weight`, where the prefix ends in
/// `transformer_blocks.0`. F16, BF16 and F32 are converted to the type of the block.
#[derive(Debug)]
pub struct WeightsFile<'f>(SafeTensors<'f>);

/// Why a file does not have the weights of a block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum WeightsError {
    /// It is not a safetensors file.
    #[error("not a valid safetensors file: {error}")]
    Format { error: SafeTensorError },
    /// It has no block, or several to choose from.
    #[error("the file has {}", listed(found))]
    Blocks { found: Vec<String> },
    /// A tensor is missing.
    #[error("the file has no tensor {name}")]
    Missing { name: String },
    /// A tensor has a type that is not converted.
    #[error("tensor {name} is {dtype:?}, expected F16, BF16 or F32")]
    Dtype { name: String, dtype: Dtype },
    /// A tensor has another shape than the block requires.
    #[error("tensor {name} has shape {given:?}, expected {expected:?}")]
    Shape { name: String, given: Vec<usize>, expected: Vec<u64> },
    /// The block's channels are not supported.
    #[error(transparent)]
    Channels(#[from] KernelError),
}

impl<'f> WeightsFile<'f> {
    /// Reads the header of a file's bytes. The header is checked against the length of the bytes; nothing is copied.
    ///
    /// # Errors
    ///
    /// [`WeightsError::Format`] if it is not valid.
    pub fn read(bytes: &'f [u8]) -> Result<Self, WeightsError> {
        let read = SafeTensors::deserialize(bytes);
        read.map(Self).map_err(|error| WeightsError::Format { error })
    }

    /// The prefixes of its blocks, sorted.
    pub fn blocks(&self) -> Vec<String> {
        let names = self.0.names();
        let prefix = |name: &&str| Some(name.strip_suffix(FIRST_OF_A_BLOCK)?.to_owned());
        let mut found: Vec<String> =
            names.iter().map(AsRef::as_ref).filter_map(|n| prefix(&n)).collect();
        found.sort_unstable();
        found
    }

    /// The weights of the block with this prefix, or of the only one.
    ///
    /// # Errors
    ///
    /// [`WeightsError`] if there is no block or more than one, or a tensor is missing or has another type or shape.
    pub fn block<T: Element>(&self, prefix: Option<&str>) -> Result<BlockWeights<T>, WeightsError> {
        let prefix = self.prefix(prefix)?;
        let query = self.tensor(&format!("{prefix}{FIRST_OF_A_BLOCK}"))?;
        let channels = query.shape().first().copied().map_or(0, to_u64);
        // More heads allow no more channels.
        BlockShape::new(0, 1, channels, channels.max(1))?;
        let tensors: Vec<Vec<T>> = BLOCK_TENSORS
            .iter()
            .map(|tensor| self.elements(&prefix, tensor, channels))
            .collect::<Result<_, _>>()?;
        let tensors = tensors.try_into().map_err(|_| WeightsError::Blocks { found: Vec::new() })?;
        let weights = BlockWeights::from_tensors(channels, tensors)?;
        Ok(weights.with_positions(self.positions(&prefix, channels)?)?)
    }

    /// The embeddings of positions of a block, `[1, positions, channels]` in the file; none if it has none.
    fn positions<T: Element>(&self, prefix: &str, channels: u64) -> Result<Vec<T>, WeightsError> {
        let name = format!("{prefix}{POSITIONS}");
        let Ok(view) = self.0.tensor(&name) else { return Ok(Vec::new()) };
        match *view.shape() {
            [1, rows, columns] if rows > 0 && to_u64(columns) == channels => {}
            ref given => {
                let given = given.to_vec();
                let rows = given.get(1).map_or(1, |rows| to_u64(*rows).max(1));
                return Err(WeightsError::Shape { name, given, expected: vec![1, rows, channels] });
            }
        }
        let mut positions = Vec::new();
        extend(&mut positions, &name, &view)?;
        Ok(positions)
    }

    /// The names of unused tensors of the block with this prefix, or of the only block, sorted.
    ///
    /// # Errors
    ///
    /// As of [`Self::block`], if there is none or not one alone.
    pub fn unused(&self, prefix: Option<&str>) -> Result<Vec<String>, WeightsError> {
        let prefix = self.prefix(prefix)?;
        let used: HashSet<&str> = BLOCK_TENSORS
            .iter()
            .flat_map(|tensor| tensor.in_files)
            .copied()
            .chain([POSITIONS])
            .collect();
        let names = self.0.names();
        let is_unused =
            |name: &&str| name.strip_prefix(&*prefix).is_some_and(|name| !used.contains(name));
        let names = names.iter().map(AsRef::as_ref).filter(is_unused);
        let mut unused: Vec<String> = names.map(str::to_owned).collect();
        unused.sort_unstable();
        Ok(unused)
    }

    /// The prefix with its last dot, of this block or the only one.
    fn prefix(&self, given: Option<&str>) -> Result<String, WeightsError> {
        if let Some(given) = given {
            let dot = if given.is_empty() || given.ends_with('.') { "" } else { "." };
            return Ok(format!("{given}{dot}"));
        }
        let mut found = self.blocks();
        match (found.pop(), found.is_empty()) {
            (Some(only), true) => Ok(only),
            (last, _) => {
                found.extend(last);
                Err(WeightsError::Blocks { found })
            }
        }
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'f>, WeightsError> {
        self.0.tensor(name).map_err(|_| WeightsError::Missing { name: name.to_owned() })
    }

    /// The elements of a tensor, whose parts in the file follow each other.
    fn elements<T: Element>(
        &self,
        prefix: &str,
        tensor: &WeightTensor,
        channels: u64,
    ) -> Result<Vec<T>, WeightsError> {
        let count = to_u64(tensor.in_files.len());
        let rows = channels * tensor.rows.checked_div(count).unwrap_or(0);
        let expected = match tensor.columns {
            0 => vec![rows],
            columns => vec![rows, columns * channels],
        };
        let mut views = Vec::with_capacity(tensor.in_files.len());
        for name in tensor.in_files {
            let name = format!("{prefix}{name}");
            let view = self.tensor(&name)?;
            if !view.shape().iter().map(|size| to_u64(*size)).eq(expected.iter().copied()) {
                let given = view.shape().to_vec();
                return Err(WeightsError::Shape { name, given, expected });
            }
            views.push((name, view));
        }
        // No larger than the file, whose tensors have these shapes.
        let mut elements = Vec::with_capacity(to_usize(tensor.elements(channels)));
        for (name, view) in views {
            extend(&mut elements, &name, &view)?;
        }
        Ok(elements)
    }
}

/// Appends the elements of a tensor.
fn extend<T: Element>(
    to: &mut Vec<T>,
    name: &str,
    view: &TensorView<'_>,
) -> Result<(), WeightsError> {
    let data = view.data();
    match view.dtype() {
        Dtype::F16 => convert(to, data, |bytes| f16::from_le_bytes(bytes).to_f32()),
        Dtype::BF16 => convert(to, data, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        Dtype::F32 => convert(to, data, f32::from_le_bytes),
        dtype => return Err(WeightsError::Dtype { name: name.to_owned(), dtype }),
    }
    Ok(())
}

/// Appends elements of `N` bytes each.
fn convert<T: Element, const N: usize>(to: &mut Vec<T>, from: &[u8], value: fn([u8; N]) -> f32) {
    let (elements, _) = from.as_chunks::<N>();
    to.extend(elements.iter().map(|bytes| T::narrow(value(*bytes))));
}

/// `2 blocks: name one of them: a, b`, with a part of a long list.
fn listed(found: &[String]) -> String {
    let shown = found.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if found.len() > SHOWN { ", ..." } else { "" };
    match found.len() {
        0 => "no block".into(),
        blocks => format!("{blocks} blocks: name one of them: {shown}{more}"),
    }
}

/// The tensor that identifies a block and its channels.
const FIRST_OF_A_BLOCK: &str = "attn1.to_q.weight";
/// The most blocks that an error lists.
const SHOWN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    type Tensor = (String, Dtype, Vec<usize>);

    /// The tensors of a block of 16 channels.
    fn block(prefix: &str, dtype: Dtype) -> Vec<Tensor> {
        let of = |tensor: &WeightTensor| -> Vec<Tensor> {
            let rows = to_usize(tensor.rows * 16) / tensor.in_files.len();
            let mut shape = vec![rows];
            shape.extend((tensor.columns > 0).then_some(to_usize(tensor.columns * 16)));
            let named = |name: &&str| (format!("{prefix}{name}"), dtype, shape.clone());
            tensor.in_files.iter().map(named).collect()
        };
        BLOCK_TENSORS.iter().flat_map(of).collect()
    }

    /// A file of these tensors, each filled with ones of its number modulo 16.
    fn file(tensors: &[Tensor]) -> Vec<u8> {
        let data: Vec<Vec<u8>> = tensors
            .iter()
            .zip(0_u8..)
            .map(|((_, dtype, shape), number)| {
                let count = shape.iter().product();
                let value = f32::from(number % 16);
                match dtype {
                    Dtype::F16 => f16::from_f32(value).to_le_bytes().repeat(count),
                    Dtype::BF16 => bf16::from_f32(value).to_le_bytes().repeat(count),
                    _ => value.to_le_bytes().repeat(count),
                }
            })
            .collect();
        let views = tensors.iter().zip(&data).map(|((name, dtype, shape), data)| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), data).expect("a tensor"))
        });
        safetensors::serialize(views, None).expect("a file")
    }

    fn refused(tensors: &[Tensor], prefix: Option<&str>) -> String {
        let bytes = file(tensors);
        let file = WeightsFile::read(&bytes).expect("valid");
        file.block::<f16>(prefix).expect_err("refused").to_string()
    }

    #[test]
    fn tensors_of_every_type_are_converted_and_queries_keys_and_values_joined() {
        for dtype in [Dtype::F16, Dtype::BF16, Dtype::F32] {
            let bytes = file(&block("motion.transformer_blocks.0.", dtype));
            let file = WeightsFile::read(&bytes).expect("valid");
            assert_eq!(file.blocks(), ["motion.transformer_blocks.0."]);
            let weights = file.block::<bf16>(None).expect("a block");
            assert_eq!(weights.channels(), 16);
            for (tensor, elements) in BLOCK_TENSORS.iter().zip(&weights.tensors) {
                assert_eq!(to_u64(elements.len()), tensor.elements(16), "{tensor:?}");
            }
            let qkv: Vec<f32> = weights.tensors[2].iter().map(|x| x.to_f32()).collect();
            let parts: Vec<f32> = qkv.chunks(256).map(|part| part[7]).collect();
            assert_eq!(parts, [2.0, 3.0, 4.0]);
            let same = file.block::<bf16>(Some("motion.transformer_blocks.0"));
            assert_eq!(same.expect("named"), weights);
        }
    }

    #[test]
    fn several_blocks_have_to_be_told_apart() {
        let mut two = block("a.", Dtype::F16);
        two.extend(block("b.", Dtype::F16));
        assert_eq!(refused(&two, None), "the file has 2 blocks: name one of them: a., b.");
        assert_eq!(refused(&two, Some("c")), "the file has no tensor c.attn1.to_q.weight");
        assert_eq!(refused(&[], None), "the file has no block");
        let bytes = file(&two);
        assert!(WeightsFile::read(&bytes).expect("valid").block::<f32>(Some("b")).is_ok());
    }

    #[test]
    fn what_a_block_has_beside_is_listed() {
        let mut tensors = block("", Dtype::F32);
        tensors.push(("attn1.to_q.lora.weight".to_owned(), Dtype::F32, vec![4, 16]));
        let bytes = file(&tensors);
        let file = WeightsFile::read(&bytes).expect("valid");
        assert_eq!(file.unused(None).expect("one block"), ["attn1.to_q.lora.weight"]);
    }

    #[test]
    fn embeddings_of_positions_are_read_where_there_are_some() {
        let with = |dtype, shape: &[usize]| {
            let mut tensors = block("", Dtype::F16);
            tensors.push((POSITIONS.to_owned(), dtype, shape.to_vec()));
            tensors
        };
        let bytes = file(&with(Dtype::F32, &[1, 32, 16]));
        let file = WeightsFile::read(&bytes).expect("valid");
        assert!(file.unused(None).expect("one block").is_empty());
        let weights = file.block::<f16>(None).expect("a block");
        assert_eq!(weights.positions, vec![f16::from_f32(4.0); 32 * 16]);
        for (shape, expected) in [
            (&[1, 32, 8][..], "[1, 32, 16]"),
            (&[32, 16], "[1, 16, 16]"),
            (&[1, 0, 16], "[1, 1, 16]"),
        ] {
            let refusal = refused(&with(Dtype::F16, shape), None);
            let wanted = format!("tensor pos_embed.pe has shape {shape:?}, expected {expected}");
            assert_eq!(refusal, wanted);
        }
        let refusal = refused(&with(Dtype::I32, &[1, 2, 16]), None);
        assert_eq!(refusal, "tensor pos_embed.pe is I32, expected F16, BF16 or F32");
    }

    #[test]
    fn missing_tensors_and_other_types_and_shapes_are_errors() {
        let mut missing = block("", Dtype::F16);
        missing.retain(|(name, ..)| name != "ff.net.2.bias");
        assert_eq!(refused(&missing, None), "the file has no tensor ff.net.2.bias");
        let mut integer = block("", Dtype::F32);
        integer[1].1 = Dtype::I32;
        let refusal = refused(&integer, None);
        assert_eq!(refusal, "tensor norm1.bias is I32, expected F16, BF16 or F32");
        let mut narrow = block("", Dtype::F16);
        narrow[3].2 = vec![16, 8];
        let refusal = refused(&narrow, None);
        assert_eq!(refusal, "tensor attn1.to_k.weight has shape [16, 8], expected [16, 16]");
        let mut channels = block("", Dtype::F16);
        channels[2].2 = vec![20, 16];
        assert_eq!(refused(&channels, None), "channels is 20, not a multiple of 8");
        channels[2].2 = vec![];
        assert_eq!(refused(&channels, None), "channels is 0, the kernel takes 1 to 65536");
    }

    #[test]
    fn a_header_that_claims_more_than_the_file_has_is_an_error_before_anything_is_copied() {
        let header = br#"{"attn1.to_q.weight":{"dtype":"F16","shape":[65536,65536],"data_offsets":[0,8589934592]}}"#;
        let mut bytes = to_u64(header.len()).to_le_bytes().to_vec();
        bytes.extend(header);
        let error = WeightsFile::read(&bytes).expect_err("too short");
        assert!(matches!(error, WeightsError::Format { .. }), "{error}");
        let whole = file(&block("", Dtype::F16));
        for length in [0, 7, 8, 100, whole.len() - 1] {
            assert!(matches!(
                WeightsFile::read(&whole[..length]),
                Err(WeightsError::Format { .. })
            ));
        }
    }
}
