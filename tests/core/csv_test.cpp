#include "core/csv.hpp"

#include <catch2/catch.hpp>

#include "tests/temporary_folder.hpp"

namespace stepcast::csv_test {

std::string written(const TemporaryFolder& folder, const std::string& text) {
  return folder.write("t.csv", text);
}

TEST_CASE("quoted cells keep commas, quotes and line breaks; empty lines count as lines and hold nothing") {
  const TemporaryFolder folder;
  const CsvTable table =
      read_csv(written(folder, "# GPUs,name\r\n8,\"a, \"\"b\"\"\"\r\n\n16,\"two\nlines\"\n32,last"));
  CHECK(table.columns == std::vector<std::string>{"# GPUs", "name"});
  REQUIRE(table.rows.size() == 3);
  CHECK(table.rows[0] == std::vector<std::string>{"8", "a, \"b\""});
  CHECK(table.rows[1] == std::vector<std::string>{"16", "two\nlines"});
  CHECK(table.rows[2] == std::vector<std::string>{"32", "last"});
  CHECK(table.lines == std::vector<int>{2, 4, 6});
}

TEST_CASE("a byte-order mark is no part of the first column's name") {
  const TemporaryFolder folder;
  CHECK(read_csv(written(folder, "\xef\xbb\xbfstep,batch\n1ms,2\n")).columns ==
        std::vector<std::string>{"step", "batch"});
}

TEST_CASE("errors in a table name file and line") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(read_csv(written(folder, "a,b\n1,2\n3\n")),
                    Catch::Contains("t.csv:3: found 1 cells, expected 2"));
  CHECK_THROWS_WITH(read_csv(written(folder, "a,a\n1,2\n")),
                    Catch::Contains("t.csv:1: two columns are called 'a'"));
  CHECK_THROWS_WITH(read_csv(written(folder, "a,b\n1,\"2\n")),
                    Catch::Contains("t.csv:2: a quoted cell is not closed"));
  CHECK_THROWS_WITH(read_csv(written(folder, "a,b\n")), Catch::Contains("contains no rows"));
}

}  // namespace stepcast::csv_test
