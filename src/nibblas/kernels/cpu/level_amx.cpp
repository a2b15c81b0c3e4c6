// Compiled for what level "avx512" needs and for VBMI, AMX-TILE and AMX-BF16: may only run after a
// check of the processor, and must emit no function that another translation unit could share.
#include "amx_kernel.h"
#include "row_kernel.h"
#include "w4a16.h"
#include "w4a16_stream.h"
#include "w4a4_avx512.h"

namespace nibblas::cpu {
namespace {

using Vector = Vec256<struct AmxLevel>;
using VectorBf16 = W4A16<Vector, Bf16Tokens<Vector>>;
using VectorFp16 = W4A16<Vector, Fp16Tokens<Vector>>;

// Where the parts of a scratch buffer start; the panel comes first.
struct AmxScratch {
  i64 sums = AmxKernel::panel_bytes();
  i64 vector_token;
  i64 vector_scratch;
  i64 total;

  explicit AmxScratch(const Group& group) : vector_token(sums + AmxKernel::sum_bytes(group)) {
    vector_scratch = vector_token + round_up(VectorBf16::token_bytes(group.k), kScratchAlignment);
    total = vector_scratch + ScratchMap<VectorBf16>(token_range(group, 0, 1)).total;
  }
};

template <class Kernel>
void run_one_token(const Group& token, i64 row_begin, i64 row_end, u8* prepared, u8* scratch) {
  Kernel::prepare_token(token, 0, prepared);
  run_rows<Vector, Kernel>(token, prepared, row_begin, row_end, scratch);
}

void run_marked_tokens(const Group& group, const u8* marks, i64 row_begin, i64 row_end,
                       u8* scratch) {
  const AmxScratch map(group);
  for (i64 t = 0; t < group.tokens; ++t) {
    if (marks[t] == 0) continue;
    const auto run_one =
        group.x_type == NIBBLAS_BFLOAT16 ? run_one_token<VectorBf16> : run_one_token<VectorFp16>;
    run_one(token_range(group, t, 1), row_begin, row_end, scratch + map.vector_token,
            scratch + map.vector_scratch);
  }
}

// How a group is computed: by its own size alone.
enum class Path {
  kDots,    // few NVFP4 tokens: integer dot products
  kFloats,  // few 16-bit tokens: fp32
  kTiles,
};

using Dots = DotStream<Vector>;
using Floats = FloatStream<Vector>;

Path path_of(const Group& group) {
  if (group.batch_invariant) return Path::kTiles;
  if (group.x_type == NIBBLAS_E2M1X2) {
    return group.tokens <= Dots::kMostTokens ? Path::kDots : Path::kTiles;
  }
  return group.tokens <= Floats::kMostTokens ? Path::kFloats : Path::kTiles;
}

// Where the parts of prepared tokens are; 1 in `marks` where a token is left to run_marked_tokens.
const u8* marks_of(const Group& group, const u8* prepared) {
  switch (path_of(group)) {
    case Path::kDots:
      return nullptr;
    case Path::kFloats:
      return prepared + group.tokens * Floats::token_bytes(group.k);
    default:
      return AmxTokens(group).marks(prepared);
  }
}

i64 prepared_bytes(const Group& group) {
  switch (path_of(group)) {
    case Path::kDots:
      return group.tokens * Dots::token_bytes(group.k);
    case Path::kFloats:
      return group.tokens * (Floats::token_bytes(group.k) + 1);
    default:
      return AmxTokens(group).bytes();
  }
}

void prepare_floats(const Group& group, i64 token, u8* prepared) {
  u8* marks = prepared + group.tokens * Floats::token_bytes(group.k);
  marks[token] = is_extreme(group, token);
  const u8* row = group.x + token * group.x_row_bytes;
  Floats::prepare_token(group.k, prepared + token * Floats::token_bytes(group.k), [&](i64 k) {
    return marks[token] != 0 ? 0.0f : load_as_float(row, group.x_type, k);
  });
}

void prepare(const Group& group, i64 begin, i64 end, u8* prepared) {
  const Path path = path_of(group);
  if (path == Path::kTiles) return AmxTokens(group).prepare(begin, end, prepared);
  for (i64 t = begin; t < end; ++t) {
    if (path == Path::kFloats) {
      prepare_floats(group, t, prepared);
    } else {
      prepare_dot_token(group, t, prepared + t * Dots::token_bytes(group.k));
    }
  }
}

i64 scratch_bytes(const Group& group) { return AmxScratch(group).total; }

void run(const Group& group, const u8* prepared, i64 row_begin, i64 row_end, u8* scratch) {
  float* sums = reinterpret_cast<float*>(scratch + AmxScratch(group).sums);
  switch (path_of(group)) {
    case Path::kDots:
      return run_stream<Vector, Dots>(group, prepared, row_begin, row_end, sums);
    case Path::kFloats:
      run_stream<Vector, Floats>(group, prepared, row_begin, row_end, sums);
      break;
    case Path::kTiles:
      AmxKernel(group, prepared, scratch, sums).run<Vec512<struct AmxLevel>>(row_begin, row_end);
      break;
  }
  run_marked_tokens(group, marks_of(group, prepared), row_begin, row_end, scratch);
}

constexpr i64 kAmxTokenBlock = 256;
constexpr i64 kAmxDecodeCost = 32;
constexpr i64 kAmxWorkerCost = 81920;

static_assert(kTileSize == kPreparedTokens, "one preparation fills one tile of tokens");

}  // namespace

extern const Level kAmxLevel = {
    "amx",          kAmxRows,       kAmxTokenBlock, kTileSize,     kAmxDecodeCost,
    kAmxWorkerCost, prepared_bytes, prepare,        scratch_bytes, run};

}  // namespace nibblas::cpu
