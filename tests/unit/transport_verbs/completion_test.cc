#include "transport/verbs/completion_table.h"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

namespace kvrail::transport::verbs {

TEST_CASE("every status that the library can name has a row of its own") {
  // The library's text for what it does not know; statuses are numbered from 0.
  int known = 0;
  for (int i = 0; i < 32; ++i) {  // what the type can hold
    const auto status = static_cast<ibv_wc_status>(i);
    const bool named = i <= IBV_WC_TM_RNDV_INCOMPLETE;
    const CompletionRule rule = rule_of(status);
    CAPTURE(i);
    if (!named) {
      CHECK(rule.blame == Blame::device);  // worse than it may be, never better
      continue;
    }
    ++known;
    CHECK((rule.blame == Blame::none) == (status == IBV_WC_SUCCESS));
    CHECK((rule.scope == Scope::device) == (rule.blame == Blame::device));
  }
  CHECK(known == 24);
}

TEST_CASE("who is to blame decides what a reader of counters looks at") {
  CHECK(rule_of(IBV_WC_WR_FLUSH_ERR).blame == Blame::follows);
  CHECK(rule_of(IBV_WC_RETRY_EXC_ERR).blame == Blame::path);
  CHECK(rule_of(IBV_WC_REM_ACCESS_ERR).blame == Blame::peer);
  CHECK(rule_of(IBV_WC_RNR_RETRY_EXC_ERR).blame == Blame::peer);
  CHECK(rule_of(IBV_WC_LOC_PROT_ERR).blame == Blame::own);
  CHECK(rule_of(IBV_WC_FATAL_ERR).blame == Blame::device);
}

}  // namespace kvrail::transport::verbs
