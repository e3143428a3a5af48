#include "transport/verbs/completion_table.h"

#include <array>
#include <cstddef>

namespace kvrail::transport::verbs {
namespace {

struct Row {
  ibv_wc_status status;
  CompletionRule rule;
};
constexpr std::array kRows{
    Row{IBV_WC_SUCCESS, {Blame::none, Scope::transfer}},
    Row{IBV_WC_LOC_LEN_ERR, {Blame::own, Scope::lane}},
    Row{IBV_WC_LOC_QP_OP_ERR, {Blame::own, Scope::lane}},
    Row{IBV_WC_LOC_EEC_OP_ERR, {Blame::own, Scope::lane}},
    Row{IBV_WC_LOC_PROT_ERR, {Blame::own, Scope::lane}},
    Row{IBV_WC_WR_FLUSH_ERR, {Blame::follows, Scope::lane}},
    Row{IBV_WC_MW_BIND_ERR, {Blame::own, Scope::lane}},
    Row{IBV_WC_BAD_RESP_ERR, {Blame::path, Scope::lane}},
    Row{IBV_WC_LOC_ACCESS_ERR, {Blame::own, Scope::lane}},
    Row{IBV_WC_REM_INV_REQ_ERR, {Blame::peer, Scope::lane}},
    Row{IBV_WC_REM_ACCESS_ERR, {Blame::peer, Scope::lane}},
    Row{IBV_WC_REM_OP_ERR, {Blame::peer, Scope::lane}},
    Row{IBV_WC_RETRY_EXC_ERR, {Blame::path, Scope::lane}},
    Row{IBV_WC_RNR_RETRY_EXC_ERR, {Blame::peer, Scope::lane}},
    Row{IBV_WC_LOC_RDD_VIOL_ERR, {Blame::own, Scope::lane}},
    Row{IBV_WC_REM_INV_RD_REQ_ERR, {Blame::peer, Scope::lane}},
    Row{IBV_WC_REM_ABORT_ERR, {Blame::path, Scope::lane}},
    Row{IBV_WC_INV_EECN_ERR, {Blame::own, Scope::lane}},
    Row{IBV_WC_INV_EEC_STATE_ERR, {Blame::own, Scope::lane}},
    Row{IBV_WC_FATAL_ERR, {Blame::device, Scope::device}},
    Row{IBV_WC_RESP_TIMEOUT_ERR, {Blame::path, Scope::lane}},
    Row{IBV_WC_GENERAL_ERR, {Blame::device, Scope::device}},
    Row{IBV_WC_TM_ERR, {Blame::own, Scope::lane}},
    Row{IBV_WC_TM_RNDV_INCOMPLETE, {Blame::own, Scope::lane}},
};

}  // namespace

CompletionRule rule_of(ibv_wc_status status) noexcept {
  for (const Row& row : kRows) {
    if (row.status == status) return row.rule;
  }
  return {Blame::device, Scope::device};
}

}  // namespace kvrail::transport::verbs
