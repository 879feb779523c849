#include <gloo/common/error.h>
#include <gloo/rendezvous/file_store.h>

#include <filesystem>

#include "runner/rendezvous.hpp"

namespace stepcast {
namespace {

class Files : public gloo::rendezvous::FileStore {
 public:
  using FileStore::check;
  std::string path(const std::string& key) { return objectPath(key); }
  using FileStore::FileStore;
};

/// Our Store on top of Gloo's FileStore: a file per key, renamed into its place.
class FolderStore : public Store {
 public:
  FolderStore(const std::string& folder, std::chrono::milliseconds timeout)
      : files_(folder), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& value) override {
    try {
      if (files_.check({key})) std::filesystem::remove(files_.path(key));  // it refuses to set a key anew
      files_.set(key, value);
    } catch (const std::exception& error) {
      throw RunError("rendezvous: cannot write '" + key + "': " + error.what());
    }
  }
  std::vector<char> get(const std::string& key) override {
    try {
      files_.wait({key}, timeout_);
      return files_.get(key);
    } catch (const gloo::IoException&) {
      throw TimeoutError("rendezvous: nobody set '" + key + "'");
    }
  }
  bool has(const std::string& key) override { return files_.check({key}); }

 private:
  Files files_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

std::shared_ptr<Store> make_file_store(const std::string& folder, std::chrono::milliseconds timeout) {
  return std::make_shared<FolderStore>(folder, timeout);
}

}  // namespace stepcast
