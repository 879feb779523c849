#pragma once

#include <string>
#include <vector>

/// In which numbers a training computes, keeps and sends.
namespace stepcast {

/// A policy of mixed precision (Micikevicius et al., "Mixed Precision Training", ICLR 2018):
///
/// | part         | what it is                                                                | fp32 | tf32 | bf16, fp16 |
/// |--------------|---------------------------------------------------------------------------|------|------|------|
/// | `compute`    | products of matrices, and activations, which are kept for the backward and sent between stages | fp32 | tf32 | bf16 |
/// | `parameters` | weights that compute reads; FSDP gathers them                             | fp32 | fp32 | bf16 |
/// | `gradients`  | what the backward accumulates                                             | fp32 | fp32 | bf16 |
/// | `reduction`  | gradients on their way between ranks, and FSDP's shards of them           | fp32 | fp32 | fp32 |
/// | `master`     | the weights that the optimizer updates; `none`: the parameters themselves | none | none | fp32 |
/// | `optimizer`  | each of its states                                                        | fp32 | fp32 | fp32 |
///
/// The loss is computed in fp32. Casts are not counted as kernels of their own; statistics of norms, which frameworks keep
/// in fp32, are counted as `compute`.
struct Precision {
  std::string compute = "fp32", parameters = "fp32", gradients = "fp32", reduction = "fp32", master = "none",
              optimizer = "fp32";

  /// `bf16`, `fp32,compute=bf16`, `gradients=bf16,reduction=bf16`: a column of the table (fp32 unless named first), then
  /// parts that differ. \throws InputError that names the part or dtype and the known ones
  static Precision parse(const std::string& text);
  bool operator==(const Precision&) const = default;
};

/// The shortest text that parse() reads as this.
std::string to_text(const Precision& precision);

/// Of a number: fp32 and tf32 4, bf16 and fp16 2, none 0. \pre known
double bytes_of(const std::string& dtype);

/// As devices call it: `float32`, `tf32`, `bfloat16`, `float16`.
std::string device_dtype(const std::string& dtype);

}  // namespace stepcast
