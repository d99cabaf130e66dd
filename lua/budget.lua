-- Budget: what streams have used in a window, and what streams in progress hold of it. A hold reserves hits, and its
-- settle replaces them by those that were used. The twin of src/engine/algorithm/budget.rs. A counter may have
-- thousands of streams, so a decision reads only the account, and what is known of its own stream and of two others.
-- state: a hash, see open_hash in prelude.lua
-- a: '<ddddddddddI4' at (the counter's own time when it last changed, ms), shift (how far that time is ahead of the
--    clock, ms), known_until (when all entries are forgotten, but for those of holds), first, next (numbers of the
--    first item of the queue, and of the next one to come), due (when the first is due; 0 if there is none), learned
--    (what nine of ten streams use at most, in parts of a hit; 0 before a stream has asked for it), extra (hits beyond
--    the number: topped up, or carried over into this window), number of all credits so far, refunded (when hits were
--    last refunded; 0 if they never were), number of ends; then 'd' the used hits of the newest segment and each one
--    before it, or of the window of the calendar; then '<dddI4' for each end, in the order of their times: at, hits (of
--    all holds that end then), charged (the hits of those that are charged then), holds
-- 's' and a stream's name, 'd': '<ddI4' for each entry, the newest last: at, hits, kind
-- 'q' and a number, 'd': '<dd' an item of the queue: the name of a stream, due (when what was known is forgotten)
-- 'c' and the ID of a credit, 'd': '<dddI4' number (the first is 1), the hits that were to be credited, those that
--    were, kind
-- 'p' and a place from 0 to 999, 'd': '<d' the ID of the credit whose number ends with it
-- figure1: holder, or the ID of a credit; figure2: 1 for a settle, 2 to hold what was learned, 3 for a credit; plus 4
-- if an unsettled hold is refunded; plus 8 times the number of segments, 0 for a calendar, 63 for a balance, which
-- never ends; plus 512 times the part of what is left that is carried over (percent)
-- figure3: the hits that were used, or the least to hold, or those to credit; figure4: how long a hold lasts (ms)
-- figure5: the most to hold; for a credit 0 to top up, 1 to refund
-- for a calendar, lengths of windows are told in quarters of an hour, by the clock of the instance that asks: figure2
-- is more by 65536 times the start of the present window (since the epoch); period is the length of that window, plus
-- 65536 times that of the next, plus 65536^2 times that of the last but one; figure4 is more by BESIDE times that of
-- the one before
-- A sum from 2^53 on may be rounded, but not to one below 2^53: it compares with smaller numbers as it should.
openers[#algorithms + 1] = open_hash
-- One function for all: Redis defines every function anew in each call, and searches a list for each local that a
-- function uses. With a function for each step it ran a quarter more instructions.
local function decide_budget(
  hash, hits, by_others, number, period, now, charge, holder, mode, actual, within, most)
  local ACCOUNT, END, ENTRY, ITEM, CREDIT = '<ddddddddddI4', '<dddI4', '<ddI4', '<dd', '<dddI4'
  local ACCOUNT_SIZE, END_SIZE, ENTRY_SIZE, ITEM_SIZE, CREDIT_SIZE = 84, 28, 20, 16, 28
  -- A budget tells more than others: the number of holds, which is below this, beside a time.
  local HOLDS_TOLD = 16384
  -- The same as in the twin.
  local ENDS, MAX_HOLDS, MAX_CLOSED, MAX_NAMESAKES, MAX_TIDIED = 16, 10000, 10000, 100, 2
  local LEARNED, STEPS, MAX_LEARNED, MAX_NUMBER = 256, 80, 35184372088831, 9007199254740991
  local STANDS_STILL, QUARTER, BESIDE, LENGTHS, NEVER_MOVES = 3600000, 900000, 68719476736, 65536, 63
  local MAX_CREDITS, CREDITS_KEPT = 1000, 34560000000
  local CHARGED, REFUNDED, SETTLED, OVERTAKEN, DENIED = 0, 1, 2, 3, 4
  local floor, max, min, pack, read = math.floor, math.max, math.min, struct.pack, struct.unpack
  local settles, refunds, segments, carry = mode % 4, floor(mode / 4) % 2, floor(mode / 8) % 64, floor(mode / 512) % 128
  -- A window has segments from `origin` on. That of a calendar is one segment, until it closes.
  local segment, places, stands_still, origin, closes, previous, select_window
  if segments == NEVER_MOVES then
    segment, origin, places, stands_still = math.huge, 0, 1, STANDS_STILL
  elseif segments > 0 then
    segment, origin = math.ceil(period / segments), 0
    places, stands_still = segments + 1, period
  else
    places, stands_still = 1, STANDS_STILL
    local present = floor(mode / (512 * 128)) * QUARTER
    local before = present - floor(within / BESIDE) * QUARTER
    local earliest = before - floor(period / (LENGTHS * LENGTHS)) * QUARTER
    local following = present + period % LENGTHS * QUARTER
    local last = following + floor(period / LENGTHS) % LENGTHS * QUARTER
    within = within % BESIDE
    -- Selects the window at this time, of a clock that is ahead by `shift`.
    select_window = function(time, shift)
      local wall = time - shift
      if wall < before or wall >= last then
        error('the clock of the process that asks is too far from that of Redis for a window of the calendar', 0)
      elseif wall < present then
        previous, origin, closes = earliest + shift, before + shift, present + shift
      elseif wall < following then
        previous, origin, closes = before + shift, present + shift, following + shift
      else
        previous, origin, closes = present + shift, following + shift, last + shift
      end
      segment = closes - origin
    end
  end

  -- Returns what is carried over from a window into the next one, if anything is.
  local carried = carry > 0 and function(its_extra, its_used)
    local left = min(max(min(number + its_extra, MAX_NUMBER) - its_used, 0), number)
    return floor(left / 100) * carry + floor(left % 100 * carry / 100)
  end

  -- `time` is that of the counter's own clock, which never steps back, and `clock` the same by the clock of Redis.
  local account, record, known
  if settles == 3 then
    account, known = hash_get(hash, 'a', 'c' .. pack('<d', holder))
    assert_sound(account or not known)
  else
    account, record = hash_get(hash, 'a', 's' .. pack('<d', holder))
  end
  local time, clock, shift, known_until, first, next_item, due, learned = now, now, 0, 0, 0, 0, 0, 0
  local counts, ends, used, reserved, holds = nil, {}, 0, 0, 0
  local its_extra, credits, refunded = 0, 0, 0
  local changed, set_back, charged_now = false, false, 0
  assert_sound(account or not record)
  if account then
    local ends_at = ACCOUNT_SIZE + 8 * places + 1
    assert_sound(#account >= ends_at - 1)
    local before, count
    before, shift, known_until, first, next_item, due, learned, its_extra, credits, refunded, count =
      read(ACCOUNT, account)
    clock = now + shift
    assert_sound(
      is_whole(before) and is_whole(shift) and is_whole(known_until) and is_whole(due) and is_whole(learned)
      and is_whole(its_extra) and is_whole(credits) and is_whole(refunded) and is_whole(clock)
      and is_whole(first) and is_whole(next_item) and first <= next_item and (first < next_item or due == 0)
      and #account == ends_at - 1 + count * END_SIZE)
    if before - clock > stands_still then
      shift, clock, changed, set_back = before - now, before, true, true
    end
    time = max(clock, before)
    if select_window then
      select_window(time, shift)
    end
    -- Moves the window.
    counts = {read('<' .. string.rep('d', places), account, ACCOUNT_SIZE + 1)}
    -- Sums beyond 2^53 may be rounded, but not to less: they are clipped to the same as in the twin.
    local is_sound = true
    for place = 1, places do
      local hits_then = counts[place]
      is_sound = is_sound and hits_then >= 0 and hits_then <= MAX_NUMBER and hits_then % 1 == 0
    end
    assert_sound(is_sound)
    local left = floor((time - origin) / segment) - floor((before - origin) / segment)
    -- What was used in the window of the calendar before, and its credit.
    local used_before, extra_before = 0, 0
    if left > 0 then
      if previous and before >= previous then
        used_before, extra_before = counts[1], its_extra
      end
      for place = places, 1, -1 do
        counts[place] = place > left and counts[place - left] or 0
      end
    end
    -- Ends the holds that were not settled in time.
    local last_end = before
    for place = ends_at, #account, END_SIZE do
      local at, held, charged, its_holds = read(END, account, place)
      assert_sound(
        is_whole(at) and is_whole(held) and is_whole(charged)
        and at > last_end and charged <= held and its_holds > 0 and its_holds <= held)
      last_end = at
      if at > time then
        ends[#ends + 1] = {at = at, hits = held, charged = charged, holds = its_holds}
        reserved, holds = reserved + held, holds + its_holds
      else
        local age = floor((time - origin) / segment) - floor((at - origin) / segment) + 1
        if age <= places then
          counts[age] = min(counts[age] + charged, MAX_NUMBER)
        elseif previous and at >= previous then
          used_before = used_before + charged
        end
        charged_now = charged_now + charged
        known_until = max(known_until, at + REMEMBERED)
      end
    end
    for place = 1, places do
      used = used + counts[place]
    end
    used = min(used, MAX_NUMBER)
    assert_sound(reserved <= MAX_NUMBER)
    if closes and left > 0 then
      its_extra = carried and carried(extra_before, used_before) or 0
    end
  end
  local is_new = not account or (known_until <= time and #ends == 0 and used == 0 and its_extra == 0)
  if is_new then
    record, known, changed, set_back, charged_now = nil, nil, false, false, 0
    its_extra, credits, refunded = 0, 0, 0
    time, clock, shift, known_until, first, next_item, due, learned = now, now, 0, 0, 0, 0, 0, 0
    counts = {}
    for place = 1, places do
      counts[place] = 0
    end
    if select_window then
      select_window(time, shift)
    end
  end

  -- The entries of the stream that are not forgotten. The places of the oldest ones: that holds hits, that has ended
  -- without a settle, that was settled before it came, and that was denied; the place of the settled one that was
  -- charged least, so that streams with the same name pay no less than they used; and how many hold hits.
  local own, held, over, overtaken, denied, settled, holding = {}, nil, nil, nil, nil, nil, 0
  if record then
    assert_sound(#record <= MAX_NAMESAKES * ENTRY_SIZE and #record % ENTRY_SIZE == 0)
    for from = 1, #record, ENTRY_SIZE do
      local at, its_hits, kind = read(ENTRY, record, from)
      assert_sound(is_whole(at) and is_whole(its_hits) and (kind <= REFUNDED or (kind <= DENIED and at <= time)))
      if at + REMEMBERED > time then
        local place = #own + 1
        own[place] = {at = at, hits = its_hits, kind = kind}
        if kind <= REFUNDED and at > time then
          held, holding = held or place, holding + 1
        elseif kind <= REFUNDED then
          over = over or place
        elseif kind == DENIED then
          denied = denied or place
        else
          overtaken = overtaken or (kind == OVERTAKEN and place or nil)
          settled = settled and own[settled].hits <= its_hits and settled or place
        end
      end
    end
  end

  local amount = min(number + its_extra, MAX_NUMBER)
  if settles == 2 and hits > 0 then
    hits = learned > 0 and max(min(math.ceil(learned / LEARNED), max(most, actual)), actual) or hits
    -- No more than the budget, with which no stream could begin.
    hits = min(hits, max(amount, 1))
  end
  -- When a hold ends that began now, or with the charge. Ends are rounded up, and a hold is kept one millisecond longer
  -- to cover the whole time, because times are truncated to milliseconds.
  local _, exponent = math.frexp(within / ENDS)
  local width = max(math.ldexp(1, exponent - 1), 1)
  local stop = math.ceil(((charge and charge.at + shift or time) + within + 1) / width) * width
  -- What happens: hits that are charged now; a correction of those of an earlier time; holds that have less, each with
  -- its place, the newest first; a new entry, by its kind; whether the stream is denied.
  local more, corrected_at, correction = 0, nil, 0
  local reduced, added, its_at, its_hits, is_denied = nil, nil, time, actual, false
  local allowed, is_full, learns = true, false, false
  -- A new credit, or the known one with its ID; and whether it is for usage records.
  local credited, topped_up
  if settles == 3 then
    local done, its_number = actual, nil
    if known then
      local asked, kind
      assert_sound(#known == CREDIT_SIZE)
      its_number, asked, done, kind = read(CREDIT, known)
      assert_sound(is_whole(its_number) and is_whole(asked) and is_whole(done) and kind <= 1)
      allowed = asked == actual and kind == most
    elseif most == 1 then
      local owed = actual
      for place = 1, places do
        local given = min(owed, counts[place])
        counts[place], owed = counts[place] - given, owed - given
      end
      done = actual - owed
      allowed = done > 0
      refunded = allowed and time or refunded
      charged_now, used = charged_now - done, 0
      for place = 1, places do
        used = used + counts[place]
      end
      used = min(used, MAX_NUMBER)
    elseif (segments > 0 and segments < NEVER_MOVES) or number + its_extra + actual > MAX_NUMBER then
      allowed = false
    else
      its_extra, amount, topped_up = its_extra + actual, min(number + its_extra + actual, MAX_NUMBER), actual
    end
    credited = {hits = done, is_new = allowed and not known}
    if credited.is_new then
      credits, changed, known_until = credits + 1, true, max(known_until, time + CREDITS_KEPT)
    end
  elseif settles == 1 then
    if denied and actual == 0 then
      table.remove(own, denied)
      changed = true
    elseif held then
      reduced, more, added, learns = {held, own[held].hits}, actual, SETTLED, true
    elseif over then
      local one = own[over]
      local paid = one.kind == CHARGED and one.hits or 0
      -- What an operator has refunded since may have been this.
      local its_most = one.at <= refunded and max(paid, actual) or actual
      more, corrected_at, correction = max(actual - paid, 0), one.at, -max(paid - its_most, 0)
      one.hits, one.kind, changed, learns = min(its_most, MAX_NUMBER), SETTLED, true, true
    elseif settled and actual > own[settled].hits then
      more, own[settled].hits, changed = actual - own[settled].hits, min(actual, MAX_NUMBER), true
    elseif not settled and actual > 0 then
      more, added, learns = actual, OVERTAKEN, true
    end
    -- A stream that has failed says nothing of what streams use.
    if learns and actual > 0 then
      -- Nine times as far up as down: it stays where one of ten streams uses more.
      local its_used, rest = min(actual, MAX_LEARNED) * LEARNED, learned % STEPS
      local step = (learned - rest) / STEPS
      if its_used > learned then
        -- Nine times as much would not be exact.
        learned = min(learned + 9 * step + floor(9 * rest / STEPS), MAX_LEARNED * LEARNED)
      elseif its_used < learned then
        learned = learned - step
      end
    end
  elseif charge then
    -- The hold that began with the charge, or what it was charged when it ended. After a clock reset it is unknown.
    local found
    for place, one in ipairs(own) do
      found = found or (one.kind <= REFUNDED and one.at == stop and one.hits == -hits and place or nil)
    end
    if found and not set_back then
      if stop > time then
        reduced = {found, -hits}
      else
        corrected_at, correction = stop, own[found].kind == CHARGED and stop > refunded and hits or 0
        table.remove(own, found)
        changed = true
      end
      is_denied = true
    end
  elseif hits < 0 then
    -- Releases the newest hits of the stream.
    local owed = -hits
    reduced = {}
    for place = #own, 1, -1 do
      local one = own[place]
      if owed > 0 and one.kind <= REFUNDED and one.at > time then
        local released = min(owed, one.hits)
        reduced[#reduced + 1], reduced[#reduced + 2] = place, released
        owed = owed - released
      end
    end
  elseif hits > 0 then
    is_full = holds >= MAX_HOLDS
    local has_room = used + reserved + hits <= amount and not is_full and holding < MAX_NAMESAKES
    allowed = not by_others and (overtaken ~= nil or has_room)
    if overtaken then
      if allowed then
        own[overtaken].kind, changed = SETTLED, true
      end
    elseif allowed then
      local place = 1
      while ends[place] and ends[place].at < stop do
        place = place + 1
      end
      if not ends[place] or ends[place].at ~= stop then
        table.insert(ends, place, {at = stop, hits = 0, charged = 0, holds = 0})
      end
      local its = ends[place]
      its.hits, its.holds = its.hits + hits, its.holds + 1
      its.charged = its.charged + (refunds == 0 and hits or 0)
      reserved, holds = reserved + hits, holds + 1
      added, its_at, its_hits = refunds == 0 and CHARGED or REFUNDED, stop, hits
      learned = settles == 2 and learned == 0 and min(hits, MAX_LEARNED) * LEARNED or learned
    else
      is_denied = true
    end
  end
  for i = 1, reduced and #reduced or 0, 2 do
    local place, less = reduced[i], reduced[i + 1]
    local one, found = own[place], 1
    while ends[found] and ends[found].at ~= one.at do
      found = found + 1
    end
    local its, is_gone = ends[found], less == one.hits
    assert_sound(its)
    its.hits, its.holds = its.hits - less, its.holds - (is_gone and 1 or 0)
    its.charged = its.charged - (one.kind == CHARGED and less or 0)
    assert_sound(its.charged >= 0 and its.charged <= its.hits and its.holds <= its.hits)
    if its.holds == 0 then
      assert_sound(its.hits == 0)
      table.remove(ends, found)
    end
    if is_gone then
      table.remove(own, place)
      holding, holds = holding - 1, holds - 1
    else
      one.hits = one.hits - less
    end
    reserved, changed = reserved - less, true
  end
  if more > 0 then
    counts[1] = min(counts[1] + more, MAX_NUMBER)
  end
  local corrected = corrected_at and floor((time - origin) / segment) - floor((corrected_at - origin) / segment) + 1
    or math.huge
  if corrected <= places then
    counts[corrected] = min(max(counts[corrected] + correction, 0), MAX_NUMBER)
  end
  if more > 0 or corrected <= places then
    used = 0
    for place = 1, places do
      used = used + counts[place]
    end
    used = min(used, MAX_NUMBER)
  end
  if is_denied and holding > 0 then
    -- A stream that is denied settles as well. That must not close the hold of another stream with the same name.
    added, its_hits = DENIED, 0
  end
  if added then
    -- In the place of one that holds nothing if there is no other.
    local place = 1
    while #own >= MAX_NAMESAKES and own[place] and own[place].kind <= REFUNDED and own[place].at > time do
      place = place + 1
    end
    if #own >= MAX_NAMESAKES and own[place] then
      table.remove(own, place)
    end
    if #own < MAX_NAMESAKES then
      own[#own + 1] = {at = its_at, hits = min(its_hits, MAX_NUMBER), kind = added}
      known_until, changed = added <= REFUNDED and known_until or max(known_until, its_at + REMEMBERED), true
    end
  end

  local index = floor((time - origin) / segment)
  -- When nothing is used or held any more, and nothing is left of credits.
  local reset_at, newest = clock, 1
  while newest <= places and counts[newest] == 0 do
    newest = newest + 1
  end
  -- The next window has what is carried over.
  if its_extra > 0 or (carry > 0 and (changed or not is_new)) then
    newest = 1
  end
  if newest <= places then
    reset_at = max(reset_at, origin + (index + places + 1 - newest) * segment)
  end
  for _, one in ipairs(ends) do
    -- When what is charged at the end leaves the window; of a calendar at the latest.
    one.gone = one.at
    if one.charged > 0 and not closes then
      one.gone = (floor(one.at / segment) + places) * segment
    elseif one.charged > 0 then
      one.gone = one.at < closes and closes or one.at + segment + floor(segment / 8)
    end
    reset_at = max(reset_at, one.gone)
  end
  if reset_at == math.huge then
    reset_at = time + period
  end
  local retry_after = allowed and 0 or NEVER
  if not allowed and not by_others and settles ~= 3 then
    -- When enough is free, if nothing is settled before.
    local free, at = {}, nil
    for place = 1, places do
      free[place] = {at = origin + (index + places + 1 - place) * segment, hits = counts[place]}
    end
    local used_then = counts[1]
    for _, one in ipairs(ends) do
      free[#free + 1] = {at = one.at, hits = one.hits - one.charged}
      free[#free + 1] = {at = one.gone, hits = one.charged}
      used_then = used_then + (closes and one.at < closes and one.charged or 0)
    end
    table.sort(free, function(one, other)
      return one.at > other.at
    end)
    -- Before the window closes, and then with what is carried over. From the last on: sums stay below 2^53 until no
    -- such hits have room.
    local left, place = 0, 1
    while free[place] and free[place].at >= (closes or math.huge) do
      left, place = left + free[place].hits, place + 1
    end
    local most = amount - hits
    if left > most then
      -- A denial leaves no trace, so a new counter is one then, too.
      local more = carried and not is_new and carried(its_extra, used_then) or 0
      most = closes and min(number + more, MAX_NUMBER) - hits or -1
      left, place, at = 0, 1, most >= 0 and closes or nil
    else
      at = 0
    end
    while at and free[place] do
      left = left + free[place].hits
      if left > most then
        at = max(at, free[place].at)
        break
      end
      place = place + 1
    end
    if at and is_full then
      at = max(at, ends[1].at)
    end
    if at and holding >= MAX_NAMESAKES then
      local first_own = math.huge
      for _, one in ipairs(own) do
        first_own = min(first_own, one.at)
      end
      at = max(at, first_own)
    end
    retry_after = at and at - clock or NEVER
  end
  if changed then
    -- The fields that change; false for those that are removed.
    local set = {}
    -- The stream, and others that may be forgotten. A stream that is not known, or of which something is new since it
    -- was appended to the queue, is appended.
    local one, entries, is_kept, is_appended, tidied = holder, own, record or #own > 0, not record, 0
    if credited and credited.is_new then
      -- In the place of the oldest one.
      local place = 'p' .. pack('<d', credits % MAX_CREDITS)
      local oldest = credits > MAX_CREDITS and not is_new and hash_get(hash, place)
      if oldest then
        set['c' .. oldest] = false
      end
      set['c' .. pack('<d', holder)] = pack(CREDIT, credits, actual, credited.hits, most)
      set[place] = pack('<d', holder)
    end
    while one do
      local parts = {}
      for place, entry in ipairs(entries) do
        parts[place] = pack(ENTRY, entry.at, entry.hits, entry.kind)
      end
      if is_kept and is_appended then
        set['q' .. pack('<d', next_item)] = pack(ITEM, one, time + REMEMBERED)
        due = first == next_item and time + REMEMBERED or due
        next_item = next_item + 1
      end
      if is_kept or tidied > 0 then
        set['s' .. pack('<d', one)] = is_kept and table.concat(parts)
      end
      one = nil
      if tidied < MAX_TIDIED and first < next_item and (due <= time or next_item - first > holds + MAX_CLOSED) then
        local function get(field)
          if set[field] == nil and not is_new then
            return hash_get(hash, field)
          end
          return set[field]
        end
        local field, before = 'q' .. pack('<d', first), due
        local item, following = get(field), get('q' .. pack('<d', first + 1))
        set[field] = false
        first, due, tidied = first + 1, 0, tidied + 1
        assert_sound(item and #item == ITEM_SIZE)
        one = read(ITEM, item)
        if first < next_item then
          assert_sound(following and #following == ITEM_SIZE)
          due = select(2, read(ITEM, following))
          assert_sound(is_whole(due))
        end
        local stored = get('s' .. pack('<d', one))
        assert_sound(stored and #stored <= MAX_NAMESAKES * ENTRY_SIZE and #stored % ENTRY_SIZE == 0)
        entries, is_kept, is_appended = {}, false, true
        for from = 1, #stored, ENTRY_SIZE do
          local at, one_hits, kind = read(ENTRY, stored, from)
          assert_sound(is_whole(at) and is_whole(one_hits) and (kind <= REFUNDED or (kind <= DENIED and at <= time)))
          if at + REMEMBERED > time then
            entries[#entries + 1] = {at = at, hits = one_hits, kind = kind}
            is_kept = is_kept or at + REMEMBERED > before
          end
        end
      end
    end
    local parts = {
      pack(ACCOUNT, time, shift, known_until, first, next_item, due, learned, its_extra, credits, refunded, #ends),
      pack('<' .. string.rep('d', places), unpack(counts)),
    }
    for place, its in ipairs(ends) do
      parts[place + 2] = pack(END, its.at, its.hits, its.charged, its.holds)
    end
    set.a = table.concat(parts)
    if is_new then
      hash.is_stored, hash.set = false, set
    else
      for field, value in pairs(set) do
        hash.set[field] = value
      end
    end
  end
  local kept = max(reset_at, known_until, #ends > 0 and ends[#ends].at + REMEMBERED or 0)
  if segments == NEVER_MOVES or carry > 0 then
    kept = max(kept, time + (carry > 0 and CREDITS_KEPT or period))
  end
  local remaining = amount - used - reserved
  -- For usage records.
  charged_now = changed and charged_now + more + (corrected_at and correction or 0) or 0
  -- Only a peek has no hits; operators look at counters by one.
  local is_peek = hits == 0 and not charge and settles ~= 1 and settles ~= 3
  local its_learned = is_peek and math.ceil(learned / LEARNED) or 0
  told_behind = its_extra + its_learned > 0 and pack('<dd', its_extra, its_learned) or nil
  if not allowed then
    return changed and hash, kept - clock, false, max(remaining, 0), reset_at - clock, retry_after, nil, 0, charged_now
  end
  -- What the stream has begun to hold, or what was credited, or what all streams hold.
  local all_hold, all_holds, first_end = reserved, holds, ends[1] and ends[1].at
  if credited then
    all_hold, all_holds, first_end = credited.hits, credited.is_new and 1 or 0, nil
  elseif hits > 0 then
    all_hold, all_holds, first_end = overtaken and 0 or hits, overtaken and 0 or 1, not overtaken and stop
  end
  -- A damaged state may have an end that cannot be told.
  local told = all_holds + min(first_end and first_end - clock or 0, 274877906943) * HOLDS_TOLD
  return changed and hash, kept - clock, true, max(remaining, -MAX_NUMBER), reset_at - clock, told, nil, all_hold,
    charged_now, topped_up
end

algorithms[#algorithms + 1] = function(
  hash, hits, by_others, number, period, count_denied, now, charge, holder, mode, actual, within, most)
  return decide_mended(
    decide_budget, hash, open_hash(hash.key, true), hits, by_others, number, period, now, charge, holder, mode,
    actual, within, most)
end
