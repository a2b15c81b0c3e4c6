// From problems, as callers describe them, to one table of groups, whatever their form.
#pragma once

#include <cstddef>
#include <vector>

#include "group.h"

namespace nibblas::cpu {

// Ok, or the first reason to refuse the problem.
NibblasStatus check_problem(const NibblasProblem& problem);

// Groups of all products that have something to compute, in order; a group of more than
// `token_block` tokens is several entries of nearly equal size.
class GroupTable {
 public:
  // Throws std::bad_alloc.
  GroupTable(const NibblasProblem* problems, i64 count, i64 token_block);

  i64 count() const { return static_cast<i64>(groups_.size()); }
  const Group& operator[](i64 g) const { return groups_[static_cast<std::size_t>(g)]; }

 private:
  void add(const NibblasProblem& problem, i64 token_block);
  void add_blocks(const Group& group, i64 token_block);

  std::vector<Group> groups_;
};

}  // namespace nibblas::cpu
