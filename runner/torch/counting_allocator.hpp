#pragma once

/// LibTorch's memory in the account of runner/memory_account.hpp. Includes no LibTorch.
namespace stepcast {

/// Takes the place of LibTorch's allocator for processors, for the life of the process. Every array is
/// preceded by a header that says its size and category. What libraries take from the heap on their own
/// (BLAS, kernels' mapped scratch) is not seen. Freed memory stays with the process. \pre no tensor exists
/// yet
void install_counting_allocator();

}  // namespace stepcast
