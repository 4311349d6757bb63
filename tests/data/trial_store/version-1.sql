BEGIN TRANSACTION;
CREATE TABLE trial_claims (
	id INTEGER NOT NULL, 
	run_id INTEGER, 
	pid BIGINT NOT NULL, 
	started BIGINT NOT NULL, 
	seconds BIGINT NOT NULL, 
	token TEXT NOT NULL, 
	configs TEXT NOT NULL, 
	host TEXT NOT NULL, 
	space TEXT NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(run_id) REFERENCES trial_runs (id)
);
CREATE TABLE trial_owners (
	id INTEGER NOT NULL, 
	pid BIGINT NOT NULL, 
	started BIGINT NOT NULL, 
	beats BIGINT NOT NULL, 
	folder TEXT NOT NULL, 
	token TEXT NOT NULL, 
	host TEXT NOT NULL, 
	space TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE trial_rounds (
	id INTEGER NOT NULL, 
	run_id INTEGER, 
	round BIGINT NOT NULL, 
	trials BIGINT NOT NULL, 
	lowered BIGINT NOT NULL, 
	failed TEXT NOT NULL, 
	errors TEXT NOT NULL, 
	rejected TEXT, 
	PRIMARY KEY (id), 
	FOREIGN KEY(run_id) REFERENCES trial_runs (id)
);
INSERT INTO "trial_rounds" VALUES(1,1,0,4,0,'[]','{}',NULL);
INSERT INTO "trial_rounds" VALUES(2,1,1,4,0,'[]','{}',NULL);
INSERT INTO "trial_rounds" VALUES(3,1,2,4,0,'[]','{}',NULL);
INSERT INTO "trial_rounds" VALUES(4,1,3,4,0,'[]','{}',NULL);
INSERT INTO "trial_rounds" VALUES(5,1,4,4,0,'[]','{}',NULL);
CREATE TABLE trial_runs (
	id INTEGER NOT NULL, 
	folder TEXT NOT NULL, 
	workload TEXT NOT NULL, 
	target TEXT NOT NULL, 
	run TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "trial_runs" VALUES(1,'','0e3d22beb470','44391d8cca169e77','3b1ba455cf74');
CREATE TABLE trial_store (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "trial_store" VALUES(1,'version','1');
CREATE TABLE trial_validations (
	id INTEGER NOT NULL, 
	run_id INTEGER, 
	block BIGINT NOT NULL, 
	choice TEXT NOT NULL, 
	measured TEXT NOT NULL, 
	rejected TEXT, 
	PRIMARY KEY (id), 
	FOREIGN KEY(run_id) REFERENCES trial_runs (id)
);
CREATE TABLE trials (
	id INTEGER NOT NULL, 
	run_id INTEGER, 
	round BIGINT NOT NULL, 
	slot BIGINT NOT NULL, 
	cycles BIGINT NOT NULL, 
	config TEXT NOT NULL, 
	knobs TEXT NOT NULL, 
	status TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	repeats TEXT NOT NULL, 
	seconds DOUBLE, 
	rejected TEXT, 
	PRIMARY KEY (id), 
	FOREIGN KEY(run_id) REFERENCES trial_runs (id)
);
INSERT INTO "trials" VALUES(1,1,0,0,-1,'[4,5,1,0]','{"tile_h":14,"tile_w":28,"tile_co":2,"threads":1}','compile_error','allocate: the tile is too large','[]',NULL,NULL);
INSERT INTO "trials" VALUES(2,1,0,1,28521,'[1,5,3,1]','{"tile_h":2,"tile_w":28,"tile_co":8,"threads":2}','valid','','[]',0.00028521,NULL);
INSERT INTO "trials" VALUES(3,1,0,2,-1,'[5,4,1,0]','{"tile_h":28,"tile_w":14,"tile_co":2,"threads":1}','compile_error','allocate: the tile is too large','[]',NULL,NULL);
INSERT INTO "trials" VALUES(4,1,0,3,-1,'[3,5,2,0]','{"tile_h":7,"tile_w":28,"tile_co":4,"threads":1}','compile_error','allocate: the tile is too large','[]',NULL,NULL);
INSERT INTO "trials" VALUES(5,1,1,0,28561,'[4,3,2,0]','{"tile_h":14,"tile_w":7,"tile_co":4,"threads":1}','valid','','[]',0.00028561,NULL);
INSERT INTO "trials" VALUES(6,1,1,1,-1,'[0,4,0,1]','{"tile_h":1,"tile_w":14,"tile_co":1,"threads":2}','wrong_result','run: threads overlap on an odd tile','[]',NULL,NULL);
INSERT INTO "trials" VALUES(7,1,1,2,29809,'[1,1,0,0]','{"tile_h":2,"tile_w":2,"tile_co":1,"threads":1}','valid','','[]',0.00029809,NULL);
INSERT INTO "trials" VALUES(8,1,1,3,59601,'[0,0,2,0]','{"tile_h":1,"tile_w":1,"tile_co":4,"threads":1}','valid','','[]',0.00059601,NULL);
INSERT INTO "trials" VALUES(9,1,2,0,18049,'[2,1,1,0]','{"tile_h":4,"tile_w":2,"tile_co":2,"threads":1}','valid','','[]',0.00018049,NULL);
INSERT INTO "trials" VALUES(10,1,2,1,36081,'[1,1,2,0]','{"tile_h":2,"tile_w":2,"tile_co":4,"threads":1}','valid','','[]',0.00036081,NULL);
INSERT INTO "trials" VALUES(11,1,2,2,-1,'[0,3,0,1]','{"tile_h":1,"tile_w":7,"tile_co":1,"threads":2}','wrong_result','run: threads overlap on an odd tile','[]',NULL,NULL);
INSERT INTO "trials" VALUES(12,1,2,3,45489,'[0,1,0,0]','{"tile_h":1,"tile_w":2,"tile_co":1,"threads":1}','valid','','[]',0.00045489,NULL);
INSERT INTO "trials" VALUES(13,1,3,0,15249,'[0,5,1,0]','{"tile_h":1,"tile_w":28,"tile_co":2,"threads":1}','valid','','[]',0.00015249,NULL);
INSERT INTO "trials" VALUES(14,1,3,1,9313,'[1,3,0,1]','{"tile_h":2,"tile_w":7,"tile_co":1,"threads":2}','valid','','[]',9.313e-05,NULL);
INSERT INTO "trials" VALUES(15,1,3,2,-1,'[5,4,2,0]','{"tile_h":28,"tile_w":14,"tile_co":4,"threads":1}','compile_error','allocate: the tile is too large','[]',NULL,NULL);
INSERT INTO "trials" VALUES(16,1,3,3,57585,'[1,4,3,0]','{"tile_h":2,"tile_w":14,"tile_co":8,"threads":1}','valid','','[]',0.00057585,NULL);
INSERT INTO "trials" VALUES(17,1,4,0,-1,'[5,5,2,1]','{"tile_h":28,"tile_w":28,"tile_co":4,"threads":2}','compile_error','allocate: the tile is too large','[]',NULL,NULL);
INSERT INTO "trials" VALUES(18,1,4,1,16369,'[1,4,0,0]','{"tile_h":2,"tile_w":14,"tile_co":1,"threads":1}','valid','','[]',0.00016369,NULL);
INSERT INTO "trials" VALUES(19,1,4,2,-1,'[3,4,3,1]','{"tile_h":7,"tile_w":14,"tile_co":8,"threads":2}','compile_error','allocate: the tile is too large','[]',NULL,NULL);
INSERT INTO "trials" VALUES(20,1,4,3,-1,'[5,4,1,1]','{"tile_h":28,"tile_w":14,"tile_co":2,"threads":2}','compile_error','allocate: the tile is too large','[]',NULL,NULL);
CREATE UNIQUE INDEX trial_store_place ON trial_store (name);
CREATE UNIQUE INDEX trial_runs_place ON trial_runs (folder, workload, target, run);
CREATE UNIQUE INDEX trial_owners_place ON trial_owners (folder);
CREATE INDEX ix_trials_run_id ON trials (run_id);
CREATE UNIQUE INDEX trials_place ON trials (run_id, round, slot) WHERE rejected IS NULL;
CREATE INDEX ix_trial_rounds_run_id ON trial_rounds (run_id);
CREATE UNIQUE INDEX trial_rounds_place ON trial_rounds (run_id, round) WHERE rejected IS NULL;
CREATE INDEX ix_trial_validations_run_id ON trial_validations (run_id);
CREATE INDEX ix_trial_claims_run_id ON trial_claims (run_id);
COMMIT;
