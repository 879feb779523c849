#pragma once

#include <string>
#include <vector>

/// Dtypes in which a training computes, stores and sends.
namespace stepcast {

/// A policy of mixed precision (Micikevicius et al., "Mixed Precision Training", ICLR 2018); fp16 as bf16:
///
/// | part         | meaning                                                    | fp32 | tf32 | bf16 | fp8  |
/// |--------------|------------------------------------------------------------|------|------|------|------|
/// | `compute`    | GEMMs, and activations, saved or sent between stages       | fp32 | tf32 | bf16 | bf16 |
/// | `parameters` | weights that compute reads; FSDP gathers them              | fp32 | fp32 | bf16 | bf16 |
/// | `gradients`  | accumulated by the backward                                | fp32 | fp32 | bf16 | bf16 |
/// | `reduction`  | gradients sent between ranks, and FSDP's shards of them    | fp32 | fp32 | fp32 | fp32 |
/// | `master`     | weights that the optimizer updates; `none`: the parameters | none | none | fp32 | fp32 |
/// | `optimizer`  | each of its states                                         | fp32 | fp32 | fp32 | fp32 |
/// | `products`   | GEMMs of the blocks' linear layers; `none`: as `compute`   | none | none | none | fp8  |
/// | `gather`     | their weights, kept and gathered; `none`: as `parameters`  | none | none | none | none |
/// | `scope`      | which of those GEMMs: `linear` layers, `experts` or `both` | both | both | both | both |
///
/// `gradients=bf16+fp32`: those of the backward beside accumulators in fp32, to which every micro-batch adds
/// them (DeepSpeed's BF16_Optimizer).
///
/// `optimizer=int8`: states of 8 bit, with a scale of 4 B for every 256 (Dettmers et al., "8-bit Optimizers
/// via Block-wise Quantization", 2022). The loss is computed in fp32. Statistics of norms and attention's
/// logarithms of sums stay fp32. Casts count as kernels in 8 and 4 bit, and under autocast:
/// `fp32,compute=bf16` and others with `parameters` in fp32 beside `compute` in 16 bit (see autocast()).
///
/// Recipes of 8 and 4 bit (`products`; as a precision: bf16 with them): `fp8`, `fp8-rowwise`,
/// `fp8-rowwise-gw-hp` and `mxfp8-torchao` cast as torchao does with every forward; `fp8-delayed`,
/// `fp8-current`, `fp8-blockwise`, `mxfp8` and `nvfp4` are Transformer Engine's, which casts weights once
/// per step. See recipes(). torchao converts linear layers and the grouped GEMMs of experts separately
/// (`scope`).
///
/// `fp8` follows Transformer Engine and torchao (Micikevicius et al., "FP8 Formats for Deep Learning", 2022).
/// In the blocks of a `repeat`, GEMMs of activations with weights and of both their gradients run in float8.
/// Attention, routers, norms, embedding and head do not, nor does a GEMM whose rows are not a multiple of 16
/// elements. Inputs, gradients of outputs, and weights are cast (Recipe). Transformer Engine saves
/// inputs that only GEMMs need in 1 B per element, and a rank with whole weights keeps 2 B of copies; torchao
/// does neither. All-gathers of tensor parallelism move 1 B, but not of `fp8-rowwise` and `mxfp8-torchao`.
/// `gather=fp8` casts weights after their update, so that all-gathers (FSDP's, ZeRO's) move 1 B and forwards
/// cast none. Transformer Engine's recipes then keep weights in 8 or 4 bit alone, by rows and, where GEMMs
/// need it, by columns. `gather=mxfp8` sends bf16 and casts after the all-gather. Left out: collectives of
/// scales, histories of largest elements, casts that are fused with the kernel that computes the input.
struct Precision {
  std::string compute = "fp32", parameters = "fp32", gradients = "fp32", reduction = "fp32", master = "none",
              optimizer = "fp32", products = "none", gather = "none", scope = "both";

  /// `bf16`, `fp32,compute=bf16`, `gradients=bf16,reduction=bf16`: a column of the table (fp32 unless named
  /// first), then parts that differ. \throws InputError that names the part or dtype and the known ones
  static Precision parse(const std::string& text);
  bool operator==(const Precision&) const = default;
};

/// The shortest text that parse() reads as this.
std::string to_text(const Precision& precision);

/// How GEMMs with weights run in 8 or 4 bit. Transformer Engine casts by rows and by columns at once, torchao
/// by rows in the forward and by columns in the backward (weight gradients in bf16 need no column).
struct Recipe {
  /// Bytes moved per element of an input, of the gradient of an output and of a weight, in the forward and in
  /// the backward. Weights with 0 are cast once per step, which is not counted.
  struct Casts {
    double input = 3.0, input_backward = 0.0, gradient = 3.0, weight = 0.0, weight_backward = 0.0;
    double fused = 0.0;  ///< part of `input` that a norm before it saves
    int launches = 1;
  };
  std::string name;
  Casts casts{};
  std::string rates = name;       ///< recipe whose GEMMs were measured
  std::string dtype = "float8";   ///< of the device's peak rate
  double bytes = 1.0;             ///< of an element, with its part of a scale
  double copies = 2.0;            ///< bytes of copies per weight, beside the parameter
  bool scaled_by_tensor = false;  ///< a cast writes a transposed copy, too, for devices that need it
  bool saves_attended = false;    ///< a cast input also where attention saves it uncast
  bool gathers_half = false;      ///< weights are gathered as `parameters` and cast after it
  bool sends_half = false;        ///< tensor parallelism gathers inputs before they are cast
  bool exact_gradients = false;   ///< GEMMs of weight gradients run in `compute`

  /// As in torchao, which keeps inputs for the backward as they are; else Transformer Engine.
  [[nodiscard]] bool casts_each_time() const { return casts.weight > 0.0; }
};
const std::vector<Recipe>& recipes();
/// Null for `none`.
const Recipe* recipe_of(const std::string& products);

/// Bytes per number: fp32 and tf32 4, bf16 and fp16 2, fp8 1, int8 1 + 4/256, bf16+fp32 6, none 0. \pre known
double bytes_of(const std::string& dtype);

/// Name in device files: `float32`, `tf32`, `bfloat16`, `float16`, `float8`.
std::string device_dtype(const std::string& dtype);
/// The names of all dtypes in device files.
std::vector<std::string> device_dtypes();

}  // namespace stepcast
