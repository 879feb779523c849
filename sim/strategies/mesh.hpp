#pragma once

#include <string>
#include <utility>
#include <vector>

#include "schedule/schedule.hpp"

namespace stepcast {

/// Ranks arranged in named dimensions, the last one running fastest: in `pipeline=2,data=3` rank r is stage
/// r / 3, replica r % 3.
///
///     number of ranks = pipeline x data x shard x context x tensor
///
/// This is the standard order; any other is valid. `expert` and `expert_tensor` divide the ranks of data,
/// shard, context and tensor a second time: of e x t consecutive ones in standard order, t have parts of the
/// same experts. They have no place in the order.
class Mesh {
 public:
  using Dimension = std::pair<std::string, int>;  ///< name and size

  Mesh() = default;
  /// \pre names are known and different, sizes at least 1
  explicit Mesh(std::vector<Dimension> dimensions) : dimensions_(std::move(dimensions)) {}
  /// Reads `data=4,tensor=2`. \throws UsageError for unknown and repeated dimensions and for sizes that are
  /// no whole number above 0
  static Mesh parse(const std::string& text);

  /// As parse() reads it, without dimensions of size 1. A given `shard=1` stays beside `context`, which it
  /// turns into shards.
  [[nodiscard]] std::string text() const;

  [[nodiscard]] const std::vector<Dimension>& dimensions() const { return dimensions_; }
  [[nodiscard]] bool has(const std::string& dimension) const;
  [[nodiscard]] int size(const std::string& dimension) const;  ///< 1 if the mesh has no such dimension
  [[nodiscard]] int index(const std::string& dimension, int rank) const;
  /// Distance of adjacent indices of the dimension, in ranks. \pre the mesh has it, and a place for it
  [[nodiscard]] int stride(const std::string& dimension) const;

  /// Sets a size. A dimension that the mesh lacks is placed before those that follow it in standard order.
  void set(const std::string& dimension, int size);
  /// The mesh of `ranks` ranks: the first dimension of `open` that is missing has those that are left.
  /// \throws UsageError if the dimensions do not multiply to the ranks, or experts do not divide them
  [[nodiscard]] Mesh resolved(int ranks, const std::vector<std::string>& open) const;
  /// The same sizes in standard order.
  [[nodiscard]] Mesh in_standard_order() const;

 private:
  std::vector<Dimension> dimensions_;
};

/// Renumbers the ranks of a Schedule that was built in standard order to those of a mesh. \pre the mesh has
/// as many ranks
void arrange(Schedule& schedule, const Mesh& mesh);

}  // namespace stepcast
