//! A passage from one owner of the sockets to another: steps in order, each with its undo.
//!
//! A take-over moves living sockets from a php-fpm master that is not ours to our shards; a hand-back moves them the other way.
//! Both are a list of steps of which each leaves the visitors served whatever happens to the next one: both owners accept
//! on the same sockets from the moment the second is proven until the first has left, so every step in between can be taken
//! back by going the same way backwards. What cannot be taken back is the end of the one who leaves, so that is where the
//! passage turns: before it a failure undoes every step that was begun, the failed one first, and the old owner goes on as
//! if nothing had been; from it on nothing is undone, a failure is kept as a remark, and the passage goes on to its end.
//!
//! | | served by | failure here |
//! |---|---|---|
//! | fetch, start | the old owner; then both | ours leave, the old owner was never touched |
//! | disarm, rename, hold, drain | both; then ours | it is woken, its paths are given back, it starts workers again; then ours leave |
//! | kill, settle | ours | told, not undone: nothing of the old owner is left to go back to |
//!
//! The machine knows no sockets and no processes: it says what to do next, and hears how that ended. A supervisor that is
//! killed within a passage leaves a note; the next one begins again at the first step, as each may be done twice.

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order<S> {
    /// Do this step.
    Do(S),
    /// Take back what there is of this step, which may be half done.
    Undo(S),
    /// Everything is done.
    Done,
    /// Everything is as it was.
    Undone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forth,
    Back,
}

/// One passage on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage<S> {
    steps: Vec<S>,
    /// How many of the steps, from the first, can be taken back.
    reversible: usize,
    at: usize,
    direction: Direction,
    failure: Option<String>,
    remarks: Vec<String>,
}

impl<S: Copy + PartialEq> Passage<S> {
    /// Begins before the first of `steps`; from the step `turn` on nothing is taken back.
    pub fn new(steps: Vec<S>, turn: S) -> Self {
        let reversible = steps.iter().position(|step| *step == turn).unwrap_or(steps.len());
        Self { steps, reversible, at: 0, direction: Direction::Forth, failure: None, remarks: Vec::new() }
    }

    /// Gives what to do next.
    pub fn order(&self) -> Order<S> {
        match self.direction {
            Direction::Forth => self.steps.get(self.at).map_or(Order::Done, |step| Order::Do(*step)),
            Direction::Back => {
                self.at.checked_sub(1).and_then(|before| self.steps.get(before)).map_or(Order::Undone, |step| Order::Undo(*step))
            }
        }
    }

    /// Hears how the ordered step ended.
    pub fn ended(&mut self, result: Result<(), String>) {
        match (self.direction, result) {
            (Direction::Forth, Ok(())) => self.at = self.at.saturating_add(1).min(self.steps.len()),
            (Direction::Forth, Err(why)) if self.at < self.reversible => {
                self.failure = Some(why);
                self.direction = Direction::Back;
                // The failed step is the first to be taken back.
                self.at += 1;
            }
            (Direction::Forth, Err(why)) => {
                self.remarks.push(why);
                self.at = self.at.saturating_add(1).min(self.steps.len());
            }
            (Direction::Back, result) => {
                self.remarks.extend(result.err());
                self.at = self.at.saturating_sub(1);
            }
        }
    }

    /// Tells whether everything that was begun could still be taken back.
    pub fn is_reversible(&self) -> bool {
        self.direction == Direction::Back || self.at < self.reversible
    }

    /// Tells whether it goes back.
    pub fn goes_back(&self) -> bool {
        self.direction == Direction::Back
    }

    /// Gives how many steps are done, and how many there are.
    pub fn progress(&self) -> (usize, usize) {
        (self.at.min(self.steps.len()), self.steps.len())
    }

    /// Gives why it goes back, or went.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Gives what went wrong where nothing could be done about it.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows a passage whose steps fail as told, and gives every order.
    fn follow(steps: &[u8], turn: u8, fails: impl Fn(Order<u8>) -> bool) -> (Vec<Order<u8>>, Passage<u8>) {
        let mut passage = Passage::new(steps.to_vec(), turn);
        let mut orders = Vec::new();
        loop {
            let order = passage.order();
            orders.push(order);
            if matches!(order, Order::Done | Order::Undone) {
                return (orders, passage);
            }
            assert!(orders.len() < 100, "it ends");
            passage.ended(if fails(order) { Err(format!("{order:?}")) } else { Ok(()) });
        }
    }

    #[test]
    fn every_failure_before_the_turn_takes_back_what_was_begun_in_reverse() {
        let steps = [1, 2, 3, 4, 5];
        for failing in steps {
            let (orders, passage) = follow(&steps, 4, |order| order == Order::Do(failing));
            let begun: Vec<u8> = orders.iter().filter_map(|order| if let Order::Do(step) = order { Some(*step) } else { None }).collect();
            let undone: Vec<u8> =
                orders.iter().filter_map(|order| if let Order::Undo(step) = order { Some(*step) } else { None }).collect();
            if failing < 4 {
                assert_eq!(begun, (1..=failing).collect::<Vec<_>>());
                assert_eq!(undone, (1..=failing).rev().collect::<Vec<_>>());
                assert_eq!(orders.last(), Some(&Order::Undone));
                assert_eq!(passage.failure(), Some(format!("Do({failing})").as_str()));
            } else {
                assert_eq!((begun.as_slice(), undone.as_slice()), (steps.as_slice(), [].as_slice()));
                assert_eq!(orders.last(), Some(&Order::Done));
                assert_eq!((passage.failure(), passage.remarks()), (None, [format!("Do({failing})")].as_slice()));
            }
        }
    }

    #[test]
    fn an_undo_that_fails_does_not_stop_the_others() {
        let (orders, passage) = follow(&[1, 2, 3], 3, |order| matches!(order, Order::Do(2) | Order::Undo(2)));
        assert_eq!(orders, [Order::Do(1), Order::Do(2), Order::Undo(2), Order::Undo(1), Order::Undone]);
        assert_eq!(passage.remarks(), ["Undo(2)"]);
    }

    #[test]
    fn it_tells_how_far_it_is_and_whether_it_can_go_back() {
        let mut passage = Passage::new(vec![1, 2, 3], 3);
        assert!(passage.is_reversible() && passage.progress() == (0, 3));
        passage.ended(Ok(()));
        assert!(passage.is_reversible() && passage.progress() == (1, 3));
        passage.ended(Ok(()));
        assert!(!passage.is_reversible());
        passage.ended(Ok(()));
        assert_eq!((passage.order(), passage.progress()), (Order::Done, (3, 3)));
    }
}
