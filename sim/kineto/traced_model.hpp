#pragma once

#include <string>
#include <vector>

#include "models/model.hpp"
#include "records/trace.hpp"
#include "sim/kineto/rank_profile.hpp"

namespace stepcast {

/// Operations [begin, end) of a micro-batch's forward, and the parameters of their gradients.
struct ProfiledSegment {
  std::string name{};
  std::size_t begin = 0, end = 0;
  bool repeated = false;               ///< a unit of FSDP, or one of at least three equal blocks
  std::vector<double> elements{};      ///< of its parameters in the order in which gradients became ready
  [[nodiscard]] double total() const;  ///< elements
};

/// Cuts the forward before every operation with parameters, and joins FSDP's units and equal blocks.
/// \param operations of one micro-batch
std::vector<ProfiledSegment> segments_of(const std::vector<ProfiledOperation>& operations);

/// The same for the segments of a known model, whose parameters must be those of consecutive operations.
/// \throws InputError that names the first segment that does not fit
std::vector<ProfiledSegment> segments_like(const Model& model, const std::vector<ProfiledSegment>& found,
                                           const std::string& path);

/// A model file with these segments, and layers of kind `traced`.
std::string described_model(const RankProfile& profile, const std::vector<ProfiledSegment>& segments,
                            const std::string& description);

/// Names of known models with as many parameters; empty: none.
std::vector<std::string> models_with(double parameters);

}  // namespace stepcast
