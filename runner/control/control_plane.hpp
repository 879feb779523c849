#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runner/control/store.hpp"

namespace stepcast {

/// Messages between the ranks of a job that are not training data: texts, clock readings, host names,
/// results. They go through the job's store, independent of the backend. A call takes 0.1 to some
/// milliseconds, so none belongs into what is timed.
///
/// Every rank makes the same calls in the same order; `what` names the call in keys and errors. \throws
/// TimeoutError that names the ranks that did not take part in time; RunError if the store is gone
class ControlPlane {
 public:
  ControlPlane(std::shared_ptr<Store> store, int rank, int world_size, std::chrono::milliseconds timeout);

  /// The texts of all ranks, by rank, at every rank.
  std::vector<std::string> all_gather(const std::string& what, const std::string& text);
  /// As all_gather() at rank 0; the other ranks continue at once, with an empty list.
  std::vector<std::string> gather(const std::string& what, const std::string& text);
  /// The numbers of all ranks, by rank, at every rank; ranks may have different counts.
  std::vector<std::vector<double>> all_gather_numbers(const std::string& what,
                                                      const std::vector<double>& mine);

 private:
  std::string key(const std::string& what, int rank) const;
  void publish(const std::string& what, const std::string& text);
  std::vector<std::string> collect(const std::string& what);

  std::shared_ptr<Store> store_;
  int rank_;
  int world_size_;
  std::chrono::milliseconds timeout_;
  int calls_ = 0;
};

}  // namespace stepcast
