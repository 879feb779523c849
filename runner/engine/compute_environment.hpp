#pragma once

#include <string>
#include <vector>

#include "records/run_context.hpp"

/// Threads and BLAS, which determine how fast LibTorch computes on this machine.
namespace stepcast {

/// Sets OMP_NUM_THREADS and OPENBLAS_NUM_THREADS, which the libraries read when they are loaded. If one of
/// them changes, restarts the program with `arguments` (argv, program first) and does not return. \pre no
/// thread, no child and no output exists yet \throws UsageError for threads < 1
void require_thread_environment(int threads, const std::vector<std::string>& arguments);

/// Runs this program with `arguments` (argv, program first) and that many threads, and returns its standard
/// output; its messages go to those of this process. \throws Error with the exit code of the program
std::string output_of(int threads, const std::vector<std::string>& arguments);

/// BLAS that LibTorch computes with: the MKL in its wheels, otherwise the libblas.so.3 of the system. Without
/// a loaded LibTorch it reports that of the system.
BlasIdentity loaded_blas();

/// Loads LibTorch. \throws CapabilityError when matrix products would run on the reference BLAS, 10 to 40
/// times slower than OpenBLAS, unless `allow_reference`
void check_blas(bool allow_reference);

/// Processor that the kernels of the loaded OpenBLAS were written for. OpenBLAS falls back to Prescott (SSE3)
/// on a processor that it does not know, which is several times slower.
struct BlasKernels {
  std::string name;     ///< `SkylakeX`; "" if BLAS is not OpenBLAS
  std::string instead;  ///< proposed OPENBLAS_CORETYPE; "" if the kernels fit
};
BlasKernels blas_kernels();

/// Context of a file with numbers computed here: BLAS, versions of libraries, threads, seed, and a warning
/// for a slow BLAS or a busy machine.
RunContext make_compute_context(const std::string& schema, const std::vector<std::string>& command_line,
                                int threads, unsigned seed);

}  // namespace stepcast
