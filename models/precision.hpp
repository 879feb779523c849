#pragma once

#include <string>
#include <vector>

/// In which numbers a training computes, keeps and sends.
namespace stepcast {

/// A policy of mixed precision (Micikevicius et al., "Mixed Precision Training", ICLR 2018):
///
/// | part         | what it is                                                                | fp32 | tf32 | bf16, fp16 | fp8 |
/// |--------------|---------------------------------------------------------------------------|------|------|------|------|
/// | `compute`    | products of matrices, and activations, which are kept for the backward and sent between stages | fp32 | tf32 | bf16 | bf16 |
/// | `parameters` | weights that compute reads; FSDP gathers them                             | fp32 | fp32 | bf16 | bf16 |
/// | `gradients`  | what the backward accumulates                                             | fp32 | fp32 | bf16 | bf16 |
/// | `reduction`  | gradients on their way between ranks, and FSDP's shards of them           | fp32 | fp32 | fp32 | fp32 |
/// | `master`     | the weights that the optimizer updates; `none`: the parameters themselves | none | none | fp32 | fp32 |
/// | `optimizer`  | each of its states                                                        | fp32 | fp32 | fp32 | fp32 |
/// | `products`   | of the linear layers of blocks, instead of `compute`: fp8 or `none`       | none | none | none | fp8  |
/// | `gather`     | their weights between ranks that have shards of them, instead of `parameters`: fp8 or `none` | none | none | none | none |
///
/// The loss is computed in fp32. Statistics of norms, which frameworks keep in fp32, are counted as `compute`; casts are not
/// counted as kernels of their own, but those to fp8.
///
/// `fp8` is what Transformer Engine and torchao do (Micikevicius et al., "FP8 Formats for Deep Learning", 2022): of the blocks of
/// a `repeat` the products of activations with weights and both of their gradients; attention, a router, norms, embedding and
/// head stay. A product whose rows are no multiple of 16 elements stays too. Of an input and of the gradient of an output one
/// kernel reads 2 B per element and writes 1 B twice, by rows and by columns, and takes the largest element for the next scale;
/// of weights one in every forward. Kept for the backward is 1 B per element of inputs that nothing else needs; all-gathers of
/// tensor parallelism move 1 B. A rank with whole weights keeps 2 B of copies beside them. `gather=fp8` casts weights where they
/// are updated, so that all-gathers (FSDP's, ZeRO's) move 1 B and forwards cast none. Left out: exchanges of scales, histories of
/// largest elements, casts that are fused with what computes the input.
struct Precision {
  std::string compute = "fp32", parameters = "fp32", gradients = "fp32", reduction = "fp32", master = "none",
              optimizer = "fp32", products = "none", gather = "none";

  /// `bf16`, `fp32,compute=bf16`, `gradients=bf16,reduction=bf16`: a column of the table (fp32 unless named first), then
  /// parts that differ. \throws InputError that names the part or dtype and the known ones
  static Precision parse(const std::string& text);
  bool operator==(const Precision&) const = default;
};

/// The shortest text that parse() reads as this.
std::string to_text(const Precision& precision);

/// Of a number: fp32 and tf32 4, bf16 and fp16 2, fp8 1, none 0. \pre known
double bytes_of(const std::string& dtype);

/// As devices call it: `float32`, `tf32`, `bfloat16`, `float16`, `float8`.
std::string device_dtype(const std::string& dtype);

}  // namespace stepcast
