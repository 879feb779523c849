#pragma once

#include <string>
#include <vector>

#include "records/run_context.hpp"

/// Threads and BLAS: what decides how fast LibTorch computes on this machine.
namespace stepcast {

/// OMP_NUM_THREADS and OPENBLAS_NUM_THREADS count when the libraries are loaded. Where they differ from
/// `threads` this sets them and starts the program anew with `arguments` (argv, program first); it then does
/// not return. \pre no thread, no child and no output exists yet. \throws UsageError for threads < 1
void require_thread_environment(int threads, const std::vector<std::string>& arguments);

/// Runs this program with `arguments` (argv, program first) and that many threads, and returns what it writes
/// to standard output; its messages go where this process's go. \throws Error with the exit code it ended
/// with
std::string output_of(int threads, const std::vector<std::string>& arguments);

/// The BLAS that LibTorch computes with: the one it holds, as the wheels hold MKL, otherwise the system's libblas.so.3. Where
/// LibTorch is not loaded it is taken for one that holds none.
BlasIdentity loaded_blas();

/// Loads LibTorch. \throws CapabilityError when matrix products would run on the reference BLAS, 10 to 40 times slower than
/// OpenBLAS, unless `allow_reference`
void check_blas(bool allow_reference);

/// For which processor the kernels of the loaded OpenBLAS were written. What it does not know it takes for the oldest of its
/// kind, Prescott, whose kernels use SSE3: several times slower than this processor can.
struct BlasKernels {
  std::string name;     ///< `SkylakeX`; "" where BLAS is not OpenBLAS
  std::string instead;  ///< what OPENBLAS_CORETYPE should be; "" where nothing is wrong
};
BlasKernels blas_kernels();

/// The context of a file whose numbers were computed here: BLAS, versions of the libraries, threads, seed,
/// and a warning for a BLAS that is slower than it needs to be or a machine that is busy with something else.
RunContext make_compute_context(const std::string& schema, const std::vector<std::string>& command_line,
                                int threads, unsigned seed);

}  // namespace stepcast
